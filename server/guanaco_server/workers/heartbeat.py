"""A worker's heartbeat: it reports that it lives, takes over from dead workers, and runs the duties that only one may run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sqlalchemy.exc import DBAPIError

from guanaco.errors import WorkerGivenUp
from guanaco_server.runtime.background import Background
from guanaco_server.workers.service import WorkerService

BEATS = 6  # in the time of silence after which a worker counts as dead: five may be lost
ENTER_POLL_S = 0.5
DUTY = "reconcile"

logger = logging.getLogger(__name__)

TakeOver = Callable[[str], Awaitable[int]]


class Loop(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Heartbeat:
    """``take_over`` resumes what an executor left and says how much; ``duties`` run in one worker at a time.

    ``note_duty`` hears True before they start here, and False after they were stopped.
    """

    def __init__(
        self,
        workers: WorkerService,
        take_over: TakeOver,
        duties: Sequence[Loop],
        note_duty: Callable[[bool], None],
    ) -> None:
        self._workers = workers
        self._take_over = take_over
        self._duties = duties
        self._note_duty = note_duty
        self._is_on_duty = False
        self._background = Background("heartbeat")

    async def enter(self) -> None:
        """Enter before the pipeline starts. Afterwards this executor may resume what it left unfinished."""
        while not await self._workers.enter():  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(ENTER_POLL_S)

    async def start(self) -> None:
        await self._seek_duty()
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()
        await self._leave_duty()
        try:
            await self._workers.release_lease(DUTY)
        except (DBAPIError, OSError) as error:
            logger.warning("the lease of the duties is not released and runs out: %s", error)

    async def pulse(self) -> None:
        """Beat once. WorkerGivenUp if the others have given this worker up."""
        if not await self._workers.beat():
            raise WorkerGivenUp(self._workers.executor_id)
        await self._seek_duty()
        for executor_id in await self._workers.list_silent():
            if await self._workers.claim(executor_id):
                count = await self._take_over(executor_id)
                if count:
                    logger.warning("took over %d submissions of worker %s", count, executor_id)
                await self._workers.end_claim(executor_id)

    async def _run(self) -> None:
        """Beat for ever. If the database is away for long, all workers fall silent alike; then each goes on, or is given up."""
        while True:
            await asyncio.sleep(self._workers.silence_s / BEATS)
            try:
                await self.pulse()
            except (DBAPIError, OSError) as error:
                logger.warning("a heartbeat was lost: %s", error)

    async def _seek_duty(self) -> None:
        if await self._workers.take_lease(DUTY):
            await self._begin_duty()
        else:
            await self._leave_duty()

    async def _begin_duty(self) -> None:
        if self._is_on_duty:
            return
        self._note_duty(True)
        self._is_on_duty = True
        try:
            for duty in self._duties:
                await duty.start()
        except BaseException:
            await self._leave_duty()  # all of them begin again, or another worker's do
            raise

    async def _leave_duty(self) -> None:
        if not self._is_on_duty:
            return
        for duty in reversed(self._duties):
            await duty.stop()
        self._is_on_duty = False
        self._note_duty(False)
