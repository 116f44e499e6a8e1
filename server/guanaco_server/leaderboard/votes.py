"""One vote a user: her latest rating of a submission, of those that are not left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from guanaco.competitions import Competition
from guanaco_server.feedback.records import RecordedRating


@dataclass(frozen=True)
class Window:
    """From when until when (exclusive) a competition's ratings count."""

    starts_at: datetime
    ends_at: datetime | None

    def holds(self, at: datetime) -> bool:
        return self.starts_at <= at and (self.ends_at is None or at < self.ends_at)


def window_of(competition: Competition) -> Window:
    ends = [at for at in (competition.ends_at, competition.frozen_at) if at is not None]
    return Window(competition.starts_at, min(ends, default=None))


def votes_of(
    ratings: Iterable[RecordedRating], left_out: Collection[str], window: Window
) -> dict[str, RecordedRating]:
    """By submission, of one user's ratings in one competition."""
    found: dict[str, RecordedRating] = {}
    for rating in sorted(ratings, key=lambda one: (one.at, one.id)):
        if rating.id not in left_out and window.holds(rating.at):
            found[rating.submission_id] = rating
    return found
