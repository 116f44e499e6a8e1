"""Collects cyclic garbage of all ages when no reply is under way, a little at a time.

Python itself collects the young objects, as often as GC_THRESHOLD says. It would also look through all others whenever many have become old: 80 to 90 ms
of the event loop a minute after the first requests, in the middle of a reply as likely as not. Here that is done

    at DUE old objects     as soon as no reply is under way: collect, and freeze what is left, so that the next time only what has
                           become old since is looked through
    at MUST old objects    replies were under way each time: collect, and freeze what is left only where it is MUCH. Some of it belongs to a
                           reply, whose cycles are found only by a look at everything
    after EVERYTHING freezes  what is frozen is looked through as well, while no reply is under way: cycles in it may have become garbage
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from enum import Enum

from guanaco_server.runtime.background import Background

# A look for garbage holds everything up. After this number of new objects, the young ones are searched: 94 ms for 50,000
# objects of which most are garbage in cycles, as a FastAPI request leaves; 9 ms for 5,000. After this number of such searches, the objects that
# survived them: 109 ms after 200, 19 ms after 10. The third number keeps Python from a search of all.
GC_THRESHOLD = (5_000, 10, 1_000_000)
LOOK_S = 0.5  # in which a burst of requests leaves 10,000 old objects or so: after 2 s a look once took 260 ms
DUE = 15_000  # 15 ms
MUST = 40_000  # 40 ms, in which all replies wait
MUCH = MUST // 2
EVERYTHING = 500


class Look(Enum):
    NOTHING = "nothing"
    UNFROZEN = "what is not frozen"
    EVERYTHING = "everything"


class LookSchedule:
    """Decides what to look through, by the number of old objects that are not frozen, and what to freeze."""

    def __init__(self) -> None:
        self._freezes = 0

    def next(self, old: int, *, is_idle: bool) -> Look:
        if old < (DUE if is_idle else MUST):
            return Look.NOTHING
        if is_idle and self._freezes >= EVERYTHING:
            self._freezes = 0
            return Look.EVERYTHING
        return Look.UNFROZEN

    def freezes(self, left: int, *, is_idle: bool) -> bool:
        """Return whether to freeze the objects that were no garbage."""
        if not is_idle and left < MUCH:
            return False
        self._freezes += 1
        return True


class GarbageCollection:
    """A loop from the end of the platform's start on. ``turns_in_flight`` is how many replies are under way."""

    def __init__(self, turns_in_flight: Callable[[], int]) -> None:
        self._turns_in_flight = turns_in_flight
        self._loop = Background("collect garbage")

    def start(self) -> None:
        """Freeze what is there, for good: looking through it took 200 ms every so often."""
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        self._loop.start(self._run())

    async def stop(self) -> None:
        await self._loop.stop()

    async def _run(self) -> None:
        schedule, seen = LookSchedule(), 0
        while True:
            await asyncio.sleep(LOOK_S)
            if (collections := _collections()) == seen:  # nothing has become old
                continue
            is_idle = not self._turns_in_flight()
            look = schedule.next(_old_objects(), is_idle=is_idle)
            if look is not Look.NOTHING:
                _look_through(look)
                if schedule.freezes(_old_objects(), is_idle=is_idle):
                    gc.freeze()
            elif is_idle:
                seen = collections


def _collections() -> int:
    """Count the collections of the middle generation, whose survivors are old."""
    return int(gc.get_stats()[1]["collections"])


def _old_objects() -> int:
    return len(gc.get_objects(generation=2))


def _look_through(look: Look) -> None:
    if look is Look.EVERYTHING:
        gc.unfreeze()
    gc.collect()
