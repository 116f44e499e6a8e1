"""A stress check beside others, who use the same model server or another one of its machine: told what was beside it.

At a server that is shared, its requests are within the fair share of its submission.

Its requests take places as users' turns do, so that what others ask is not disturbed. The load is sent only where no submission
of the same engine has passed one lately that asked as much of a request; else a few requests of its own are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
class SharedEngine:
    """``submissions`` others use the engine; a request is sent once ``take_place`` has given it a place."""

    submissions: int
    take_place: TakePlace
    known: KnownLoad | None = None


class BesideLoad:
    """Counts what others ask of the model server during a check, and which others of the machine are asked at all."""

    def __init__(
        self,
        model_server: ModelServer,
        endpoint: str,
        shared: SharedEngine | None,
        others: Sequence[str] = (),
    ) -> None:
        """``others`` are the endpoints of the machine's other model servers."""
        self._model_server = model_server
        self._endpoint = endpoint
        self._shared = shared
        self._others = others
        self._own = 0
        self._seen: list[int] = []
        self._busy: set[str] = set()

    @property
    def is_alone(self) -> bool:
        """True if nobody else uses the server, and nobody was seen to use another one of the machine."""
        return self._shared is None and not self._busy

    def placed(self, measure: Measure) -> Measure:
        """Return the measurement of a request that waits for its place first. The wait counts, as it does for users."""
        if self._shared is None:
            return measure
        take_place = self._shared.take_place

        async def measure_placed(prompt: str, due: float) -> RequestResult:
            with await take_place():
                self._own += 1
                try:
                    return await measure(prompt, due)
                finally:
                    self._own -= 1

        return measure_placed

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def to_contract(self) -> StressBeside:
        seen = self._seen or [0]
        return StressBeside(
            submissions=self._shared.submissions if self._shared else 0,
            mean=sum(seen) / len(seen),
            most=max(seen),
            servers=len(self._busy),
        )

    async def _watch(self) -> None:
        while True:
            if self._shared is not None:
                await self._look_at_own()
            for other in self._others:
                await self._look_at(other)
            await asyncio.sleep(LOOK_S)

    async def _look_at_own(self) -> None:
        own = self._own
        with suppress(ModelServerFault):
            load = await self._model_server.load(self._endpoint)
            own = max(own, self._own)
            self._seen.append(max(0, load.running + load.waiting - own))

    async def _look_at(self, other: str) -> None:
        if other in self._busy:
            return
        with suppress(ModelServerFault):
            load = await self._model_server.load(other)
            if load.running or load.waiting:
                self._busy.add(other)
