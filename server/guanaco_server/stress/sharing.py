"""A stress check beside others, who use the same model server or another one of its machine: told what was beside it.

At a server that is shared, its requests are within the fair share of its submission.

From the moment that others use the server too, its requests take places as users' turns do, so that what others ask is not disturbed.
The load is sent only where no submission of the same engine has passed one lately that asked as much of a request; else a few requests of its own are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

from guanaco.submissions import StressBeside, StressReport
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault
from guanaco_server.stress.load import Measure, RequestResult

LOOK_S = 0.25

TakePlace = Callable[[], Awaitable[AbstractContextManager[object]]]


@dataclass(frozen=True)
class KnownLoad:
    """A load that was passed at the same engine. ``submission_id`` is None where it was another developer's."""

    report: StressReport
    submission_id: str | None


@dataclass(frozen=True)
class CheckedServer:
    """The model server that is checked, and who is beside the check, which may change meanwhile.

    ``count_sharers`` counts the other submissions that use it. To share it, a request waits until ``take_place`` has given it a place
    for each of its ``candidates``.
    ``neighbours`` are the endpoints of the machine's other model servers.
    """

    endpoint: str
    take_place: TakePlace
    count_sharers: Callable[[], Awaitable[int]]
    neighbours: Callable[[], Collection[str]]
    candidates: int = 1
    known: KnownLoad | None = None


class BesideLoad:
    """Counts the sequences that others ask of the model server during a check, and which others of the machine are asked at all."""

    def __init__(self, model_server: ModelServer, server: CheckedServer) -> None:
        self._model_server = model_server
        self._server = server
        self._own = 0
        self._sharers = 0
        self._seen: list[int] = []
        self._busy: set[str] = set()

    @property
    def is_alone(self) -> bool:
        """True if nobody else was seen to use the server, or to ask another one of the machine."""
        return self._sharers == 0 and not self._busy

    def placed(self, measure: Measure) -> Measure:
        """Return the measurement of a request that waits for its place first, where others use the server. The wait counts, as it does for users."""

        async def measure_placed(prompt: str, due: float) -> RequestResult:
            if self._sharers == 0:
                return await self._counted(measure, prompt, due)
            with await self._server.take_place():
                return await self._counted(measure, prompt, due)

        return measure_placed

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        await self._look()  # a short check may be over before the next look
        watching = asyncio.create_task(self._watch())
        try:
            yield
            await self._count()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def to_contract(self) -> StressBeside:
        seen = self._seen or [0]
        return StressBeside(
            submissions=self._sharers,
            mean=sum(seen) / len(seen),
            most=max(seen),
            servers=len(self._busy),
        )

    async def _counted(self, measure: Measure, prompt: str, due: float) -> RequestResult:
        self._own += self._server.candidates
        try:
            return await measure(prompt, due)
        finally:
            self._own -= self._server.candidates

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        await self._count()
        if self._sharers:
            await self._look_at_own()
        for neighbour in self._server.neighbours():
            await self._look_at(neighbour)

    async def _count(self) -> None:
        self._sharers = max(self._sharers, await self._server.count_sharers())

    async def _look_at_own(self) -> None:
        own = self._own
        with suppress(ModelServerFault):
            load = await self._model_server.load(self._server.endpoint)
            own = max(own, self._own)
            self._seen.append(max(0, load.running + load.waiting - own))

    async def _look_at(self, neighbour: str) -> None:
        if neighbour in self._busy:
            return
        with suppress(ModelServerFault):
            load = await self._model_server.load(neighbour)
            if load.running or load.waiting:
                self._busy.add(neighbour)
