"""Group commit: whoever writes, or reads, at the same time shares one transaction.

While one batch is on its way to the database the next one gathers, so that batches grow with the load by themselves
and a lone write waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 64  # 6 ms of PostgreSQL for ended turns; of more it takes longer for each


class GroupCommit(Generic[Item, Result]):
    """``write`` gives a result, or the error, for each item of a batch, once they are durable. What it raises is every item's error."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        on_orphan: Callable[[Result], None] | None = None,
        max_batch: int = MAX_BATCH,
        turn: Callable[[], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        """``on_orphan`` gets what was written for somebody who has left meanwhile.

        A batch waits for its ``turn``, which by itself is the end of the batch before, and then has all who wait. Who comes
        later waits for a turn too, from then on: what waits for the same turns cannot come between two batches.
        """
        self._write = write
        self._on_orphan = on_orphan
        self._max_batch = max_batch
        one_at_a_time = asyncio.Lock()
        self._turn = turn or (lambda: one_at_a_time)
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._gathering: asyncio.Task[None] | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        """Return once it is written; a caller who leaves before its batch has begun takes it back."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        self._gather()
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:
                self._note_orphan(done.result())  # it came in the very moment of leaving
            raise

    async def drain(self) -> None:
        """Wait until no write waits any more."""
        while self._batches:
            await asyncio.wait(self._batches)

    def _gather(self) -> None:
        """Have a batch wait for its turn, if none does."""
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._write_batch())
            self._batches.add(self._gathering)
            self._gathering.add_done_callback(self._batches.discard)

    async def _write_batch(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Result]]] | None = None
        results: Sequence[Result | Exception] = ()
        try:
            async with self._turn():
                batch = self._take()
                if batch:
                    results = await self._write([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            batch = self._take() if batch is None else batch
            results = [error] * len(batch)
        for (_, done), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                if not done.done():
                    done.set_exception(result)
            elif not done.done():
                done.set_result(result)
            else:
                self._note_orphan(result)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """Take those of this batch who have not left. The others are the next one's."""
        self._gathering = None
        batch = self._waiting[: self._max_batch]
        del self._waiting[: self._max_batch]
        if self._waiting:
            self._gather()
        return [(item, done) for item, done in batch if not done.done()]

    def _note_orphan(self, result: Result) -> None:
        if self._on_orphan is not None:
            self._on_orphan(result)
