"""Holds how a simulated season ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SeasonOutcome:
    """After how many ratings the verdict came, None if it did not, and whether it was wrong."""

    after: int | None
    is_wrong: bool = False
