"""What an assignment policy is: made of one snapshot of a competition's entries, it has a choice for every draw."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from guanaco_server.submissions.service import ServingSubmission


@dataclass(frozen=True)
class LiveSubmission:
    """A published submission; ``endpoints`` are those of its replicas that are ready, empty while there is none."""

    serving: ServingSubmission
    endpoints: tuple[str, ...]


class Entry(NamedTuple):
    """A submission that takes conversations of a competition; ``created_at`` in seconds, ``weight`` over 0."""

    id: str
    created_at: float
    up: int
    down: int
    weight: float

    @property
    def ratings(self) -> int:
        return self.up + self.down


class AssignmentPolicy(Protocol):
    """Chooses in microseconds: what takes longer is done when it is made."""

    def choose(self, draws: Iterator[float], barred: Set[str]) -> str | None:
        """An entry that is not barred, the same for the same draws; None when all are."""
        ...
