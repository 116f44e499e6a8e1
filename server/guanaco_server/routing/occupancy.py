"""How many conversations each submission has open, against how many its stress check showed it to hold.

The database is counted once a refresh. What was assigned since is added: from ``take`` until ``settle`` in any case,
and after that, when the conversation is stored, until a count that began later. So one process never goes over; of
several, each learns with the next count what the others assigned.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set

ReadCounts = Callable[[], Awaitable[Mapping[str, int]]]


class Occupancy:
    def __init__(self, count_open: ReadCounts, read_capacities: ReadCounts) -> None:
        """Open conversations, and how many there may be, by submission; one without a capacity holds any number."""
        self._count_open = count_open
        self._read_capacities = read_capacities
        self._capacities: Mapping[str, int] = {}
        self._counted: Mapping[str, int] = {}
        self._taken: Counter[str] = Counter()
        self._settled: list[tuple[float, str]] = []
        self._full: set[str] = set()
        self._began = float("-inf")

    @property
    def full(self) -> Set[str]:
        return self._full

    async def refresh(self) -> None:
        began = time.monotonic()
        counted, capacities = await self._count_open(), await self._read_capacities()
        if began < self._began:  # a count that began later has overtaken this one
            return
        self._began, self._counted, self._capacities = began, counted, capacities
        stored = Counter(name for at, name in self._settled if at < began)
        self._settled = [(at, name) for at, name in self._settled if at >= began]
        self._taken -= stored
        self._full = {name for name in capacities if self._is_full(name)}

    def take(self, submission_id: str) -> None:
        """A conversation is being opened; ``settle`` follows."""
        self._taken[submission_id] += 1
        if self._is_full(submission_id):
            self._full.add(submission_id)

    def settle(self, submission_id: str) -> None:
        """It is stored, or will never be."""
        self._settled.append((time.monotonic(), submission_id))

    def _is_full(self, submission_id: str) -> bool:
        capacity = self._capacities.get(submission_id)
        if capacity is None:
            return False
        return self._counted.get(submission_id, 0) + self._taken[submission_id] >= capacity
