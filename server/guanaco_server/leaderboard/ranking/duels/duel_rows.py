"""The columns in which duels are held in memory, and what a vote is worth in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from guanaco.duels import DuelOutcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows: TypeAlias = NDArray[np.void]
    Flags: TypeAlias = NDArray[np.bool_]
    Codes: TypeAlias = NDArray[np.int64]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)

LOST, HALF, WON, BAD, UNKNOWN = (
    0,
    1,
    2,
    3,
    -1,
)  # what a vote is worth for side a, in halves; two bad replies are half a win too
WORTH = {
    DuelOutcome.A.value: WON,
    DuelOutcome.B.value: LOST,
    DuelOutcome.TIE.value: HALF,
    DuelOutcome.BOTH_BAD.value: BAD,
}
KINDS = ("lost", "tied", "won", "both_bad")  # by outcome
UNMEASURED = (-1, -1, -1, -1)
ROW = [
    ("user", "i4"),
    ("a", "i4"),
    ("b", "i4"),
    ("outcome", "i1"),
    ("at", "i8"),
    ("style", "i4", (4,)),  # characters and marks of a, then of b
]


class NameCodes:
    """Numbers names in the order in which they come."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        if name not in self._codes:
            self._codes[name] = len(self.all)
            self.all.append(name)
        return self._codes[name]


def ticks_of(at: datetime) -> int:
    return (at - EPOCH) // TICK
