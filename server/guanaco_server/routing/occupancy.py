"""Finds the submissions that are at capacity: as many of their turns are answered, or wait, as their stress check showed them to hold.

The database is counted once a refresh: a turn is counted from its claim to its end, in whichever process it is, and as often as its
reply has candidates. What
waits in this process is known at once. The places of a version that a redeploy brings up beside are counted too. Submissions that
share an engine share its places: each may use what the others do not, and its equal share in any case. An open conversation without a
turn costs a model server nothing, and does not count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set

from guanaco_server.deployments.versions import submission_of
from guanaco_server.scaling.replicas import EnginePlaces

NONE: Mapping[str, int] = {}

ReadCounts = Callable[[], Awaitable[Mapping[str, int]]]
ReadCapacities = Callable[[], Awaitable[Mapping[str, EnginePlaces]]]


class Occupancy:
    def __init__(
        self,
        count_turns: ReadCounts,
        read_capacities: ReadCapacities,
        crowded: Callable[[], Set[str]],
    ) -> None:
        """Turns by submission, how many there may be by engine; ``crowded`` are those for which turns wait here."""
        self._count_turns = count_turns
        self._read_capacities = read_capacities
        self._crowded = crowded
        self._full: frozenset[str] = frozenset()
        self._began = float("-inf")

    @property
    def full(self) -> Set[str]:
        """A submission without a measured capacity is here only while turns wait for it."""
        crowded = self._crowded()
        return self._full | crowded if crowded else self._full

    async def refresh(self, candidates: Mapping[str, int] = NONE) -> None:
        """Count again. ``candidates`` says how many a reply of each submission has; one that it leaves out has one."""
        began = time.monotonic()
        counted, capacities = await self._count_turns(), await self._read_capacities()
        if began < self._began:  # a count that began later has overtaken this one
            return
        self._began = began
        sequences = {name: turns * candidates.get(name, 1) for name, turns in counted.items()}
        room = Counter[str]()
        for engine in capacities.values():
            taken = {key: sequences.get(submission_of(key), 0) for key in engine.users}
            least = min(engine.places, max(1, engine.places // len(taken)))
            for key, own in taken.items():
                of_others = sum(taken.values()) - own
                room[submission_of(key)] += max(least, engine.places - of_others)
        self._full = frozenset(
            name
            for name, places in room.items()
            if sequences.get(name, 0) + max(1, min(places, candidates.get(name, 1))) > places
        )
