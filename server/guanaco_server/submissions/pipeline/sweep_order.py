"""Decides which variants of a sweep wait for another one, and pins them all to what the first has found.

    the first variant    ──▶ check ──▶ serialize ──▶ engine ──▶ stress ──▶ served
    the others, queued   ······································▶ the same commit, artifact and engine

If the one that leads fails or is cancelled, the next takes its place. Among variants that need another engine (length, dtype, quantization), one leads the others too. A variant that waits has no workflow, and so holds no place of
``pipeline_concurrency``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from guanaco.submissions import IN_PROGRESS, Status
from guanaco_server.submissions.recipes import max_model_tokens
from guanaco_server.submissions.tables import SubmissionRow

SHARED_CHECKS = 64  # what was found is small: names and sizes of tensors
SERVED_ONCE = frozenset({Status.DEPLOYED, Status.INACTIVE, Status.TORN_DOWN})

T = TypeVar("T")


@dataclass(frozen=True)
class SweepMember:
    """One variant of a sweep; variants of one ``engine`` may share a model server."""

    id: str
    sweep: str
    status: Status
    engine: Hashable


def member_of(row: SubmissionRow) -> SweepMember:
    assert row.sweep is not None
    engine = (row.dtype, row.quantization, max_model_tokens(row.params, row.kind))
    return SweepMember(row.id, row.sweep, row.status, engine)


def held_back(members: Iterable[SweepMember]) -> set[str]:
    """Return the ids of those that wait. The members are in their sweep's order."""
    held: set[str] = set()
    sweeps = defaultdict[str, list[SweepMember]](list)
    for member in members:
        sweeps[member.sweep].append(member)
    for sweep in sweeps.values():
        held |= _followers(sweep)
        engines = defaultdict[Hashable, list[SweepMember]](list)
        for member in sweep:
            engines[member.engine].append(member)
        for engine in engines.values():
            held |= _followers(engine)
    return held


def _followers(members: Collection[SweepMember]) -> set[str]:
    """Return those that are queued while none has been served, without the one that leads."""
    if any(member.status in SERVED_ONCE for member in members):
        return set()
    under_way = [member for member in members if member.status in IN_PROGRESS]
    begun = [member for member in under_way if member.status is not Status.QUEUED]
    leader = (begun or under_way)[:1]
    return {
        member.id for member in under_way if member.status is Status.QUEUED and member not in leader
    }


class SharedChecks:
    """Keeps what was found in the repo of a sweep, so that each process looks once for all its variants.

    The key holds the commit, so nothing that was found can have changed since.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks = defaultdict[Hashable, asyncio.Lock](asyncio.Lock)

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """Return what ``find`` returned for this key; an error is not kept."""
        lock = self._locks[key]
        try:
            async with lock:
                if key not in self._found:
                    self._found[key] = await find()
                self._found.move_to_end(key)
                found = self._found[key]
                if len(self._found) > SHARED_CHECKS:
                    self._found.popitem(last=False)
                return cast("T", found)
        finally:
            if not lock.locked():
                self._locks.pop(key, None)
