"""Thumbs up and thumbs down of one group of raters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VoteCount:
    """Each rater has one vote."""

    up: int
    down: int

    @property
    def total(self) -> int:
        return self.up + self.down
