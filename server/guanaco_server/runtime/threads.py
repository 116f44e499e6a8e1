"""Threads of their own for each kind of blocking work, so that one that waits for something slow starves no other one.

HUB    requests to the Hub, which a slow or lying one may hold for as long as they may take
STORE  reads and writes of the artifact store
CHATS  what a chat computes that is too long for the event loop
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most ``count`` threads, each started when it is first needed."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in a thread, in the caller's context, and return its result."""
        context = contextvars.copy_context()
        running: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(context.run, work, *args, **kwargs)
        )
        return await running


HUB = Threads("hub", 16)
STORE = Threads("store", 16)
CHATS = Threads("chats", 4)
