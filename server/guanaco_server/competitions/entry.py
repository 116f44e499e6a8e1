"""Decides which published submissions take part in a competition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol, TypeVar

from guanaco.competitions import Competition


class Entrant(Protocol):
    @property
    def developer(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...

    @property
    def parameter_count(self) -> int | None: ...


E = TypeVar("E", bound=Entrant)


def ended_at(competition: Competition, now: datetime) -> datetime | None:
    """Return when a competition ended, by its window or a freeze; None if it has not."""
    ends = [at for at in (competition.ends_at, competition.frozen_at) if at is not None]
    end = min(ends, default=None)
    return end if end is not None and end <= now else None


def admitted(competition: Competition, submissions: Iterable[E]) -> list[E]:
    """Return the admitted submissions, newest first. A model of unknown size exceeds any limit."""
    rule = competition.entry
    found: list[E] = []
    entries: Counter[str] = Counter()
    for submission in sorted(submissions, key=lambda one: one.created_at, reverse=True):
        size = submission.parameter_count
        if rule.max_parameters is not None and (size is None or size > rule.max_parameters):
            continue
        if rule.submitted_within and not competition.is_running(submission.created_at):
            continue
        if rule.per_developer is not None and entries[submission.developer] >= rule.per_developer:
            continue
        entries[submission.developer] += 1
        found.append(submission)
    return found
