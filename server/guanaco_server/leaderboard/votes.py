"""One vote a user: her latest rating of a submission, of those that are not left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


def in_time(
    ratings: Iterable[RecordedRating], windows: Mapping[str, Window]
) -> list[RecordedRating]:
    """Those within their competition's window. Of others neither a vote nor a rule nor a slot ever knows."""
    return [
        rating
        for rating in ratings
        if rating.competition in windows and windows[rating.competition].holds(rating.at)
    ]


def votes_of(
    ratings: Iterable[RecordedRating], left_out: Collection[str]
) -> dict[str, RecordedRating]:
    """By submission, of one user's ratings in one competition that are ``in_time``."""
    found: dict[str, RecordedRating] = {}
    for rating in sorted(ratings, key=lambda one: (one.at, one.id)):
        if rating.id not in left_out:
            found[rating.submission_id] = rating
    return found
