"""Threads of their own for each kind of blocking work, so that one that waits for something slow starves no other one.

HUB         requests to the Hub, which a slow or lying one may hold for as long as they may take
STORE       reads and writes of the artifact store
FILES       files and streams of this machine
PROCESSES   starts and ends of the confined processes, for which chats may wait
CHATS       what a chat computes that is too long for the event loop
BOOKS       strangers' lorebooks, checked or looked through for a preview: each account's in turn
PAGES       what a board, an export or a picture computes for its reader
SCALING     which model servers are worth their room, for which restarts and wakes wait
METRICS     the text of the metrics, which must be had while everything else is busy
BACKGROUND  what is computed without a request that waits: one piece of work at a time

Requests to a Kubernetes API have threads by cluster, and those of the Lease their own (``clusters/kubernetes/api/client.py``).
Nothing uses the loop's own executor, which DBOS replaces by one of 64 threads. All threads share one interpreter, and each that computes may hold
it for ``serve.SWITCH_S`` whenever the event loop wants it. So few of them compute, and they keep the loop's priority: one that another
process displaces while it holds the interpreter would stop the loop as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most ``count`` threads, each started when it is first needed."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in a thread, in the caller's context, and return its result."""
        context = contextvars.copy_context()
        running: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(context.run, work, *args, **kwargs)
        )
        return await running

    async def run_in_turn(
        self, owner: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do as ``run``, one piece of work of an owner at a time: much work of one does not keep the threads from others."""
        name = (asyncio.get_running_loop(), owner)
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            return await self.run(work, *args, **kwargs)

    async def start(self, start: Callable[[], T], end: Callable[[T], object]) -> T:
        """Do as ``run``; what it starts is ended, in a thread too, where the caller has left meanwhile."""

        def end_started(started: asyncio.Future[T]) -> None:
            if not started.cancelled() and started.exception() is None:
                with contextlib.suppress(RuntimeError):  # the interpreter ends
                    self.begin(partial(end, started.result()))

        starting = asyncio.ensure_future(self.run(start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(end_started)
            raise

    def begin(self, work: Callable[[], object]) -> None:
        """Have ``work`` run in a thread soon; nobody waits for it.

        Raises:
            RuntimeError: The interpreter ends, and takes no more work.
        """
        self._pool.submit(work)


HUB = Threads("hub", 16)
STORE = Threads("store", 16)
FILES = Threads("files", 4)
PROCESSES = Threads("processes", 4)
CHATS = Threads("chats", 2)
BOOKS = Threads("books", 1)
PAGES = Threads("pages", 2)
SCALING = Threads("scaling", 1)
METRICS = Threads("metrics", 1)
BACKGROUND = Threads("background", 1)
