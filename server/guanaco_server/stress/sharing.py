"""A stress check at a model server that other submissions use: within the fair share of its own, and told what was beside it.

Its requests take places as users' turns do, so that what others ask is not disturbed. The load is sent only where no submission
of the same engine has passed one lately that asked as much of a request; else a few requests of its own are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass

from guanaco.submissions import StressBeside, StressReport
from guanaco_server.deployments.model_server import ModelServer, ModelServerFault
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
    """Counts what others ask of the model server during a check."""

    def __init__(self, model_server: ModelServer, endpoint: str, shared: SharedEngine) -> None:
        self._model_server = model_server
        self._endpoint = endpoint
        self._shared = shared
        self._own = 0
        self._seen: list[int] = []

    def placed(self, measure: Measure) -> Measure:
        """Return the measurement of a request that waits for its place first. The wait counts, as it does for users."""

        async def measure_placed(prompt: str, due: float) -> RequestResult:
            with await self._shared.take_place():
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

    def told(self) -> StressBeside:
        seen = self._seen or [0]
        return StressBeside(
            submissions=self._shared.submissions, mean=sum(seen) / len(seen), most=max(seen)
        )

    async def _watch(self) -> None:
        while True:
            own = self._own
            try:
                load = await self._model_server.load(self._endpoint)
            except ModelServerFault:
                pass
            else:
                own = max(own, self._own)
                self._seen.append(max(0, load.running + load.waiting - own))
            await asyncio.sleep(LOOK_S)
