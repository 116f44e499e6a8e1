"""Chooses which template is rendered next, so that nobody waits for a stranger's slow Jinja.

    waiting    its template has one in flight, or all threads are taken; MAX_WAITING of a template at most
    turn       templates take turns, one prompt each, in the order in which they began to wait
    rendering  in one of WIDTH threads of its own, so that nothing else of the platform waits for one

However many prompts of a slow template wait, another template's is behind one of each at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from guanaco.errors import Overloaded

WIDTH = 2
MAX_WAITING = 512  # an honest template takes a millisecond or two
MAX_WAIT_S = 5.0  # of a slower one fewer may wait: what waits longer is told so at once
SMOOTHING = 0.2
FULL = "The queue of the submission's template is full."

T = TypeVar("T")


@dataclass
class _Template:
    """``took_s`` is what its prompts took lately."""

    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    is_busy: bool = False
    took_s: float = 0.0

    @property
    def is_full(self) -> bool:
        count = len(self.waiting)
        return count >= MAX_WAITING or count * self.took_s > MAX_WAIT_S


class TemplateQueue:
    """Belongs to one event loop."""

    def __init__(self, width: int = WIDTH) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix="templates")
        self._free = width
        self._templates: OrderedDict[Hashable, _Template] = OrderedDict()

    async def run(self, template: Hashable, work: Callable[[], T], until: float) -> T:
        """Run ``work`` in a thread and return its result; raise Overloaded if its turn does not come before ``until`` on the loop's clock."""
        mine = self._templates.setdefault(template, _Template())
        if mine.is_full:
            raise Overloaded(FULL)
        await self._turn(template, mine, until)
        return await asyncio.wrap_future(self._begin(template, mine, work))

    def close(self) -> None:
        """Blocks until what is being rendered has ended."""
        self._threads.shutdown()

    async def _turn(self, template: Hashable, mine: _Template, until: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine.waiting.append(turn)
        self._give_turns()
        try:
            async with asyncio.timeout_at(until):
                await turn
        except TimeoutError:
            self._give_up(template, mine, turn)
            raise Overloaded(FULL) from None
        except asyncio.CancelledError:
            self._give_up(template, mine, turn)
            raise

    def _give_up(self, template: Hashable, mine: _Template, turn: asyncio.Future[None]) -> None:
        if turn in mine.waiting:
            mine.waiting.remove(turn)
            self._forget_idle(template, mine)
        else:  # it came at the very moment
            self._end(template, mine)

    def _give_turns(self) -> None:
        """Give turns to the templates that have waited longest, while threads are free."""
        for each in self._templates.values():
            if not self._free:
                return
            if each.waiting and not each.is_busy:
                each.is_busy = True
                self._free -= 1
                turn = each.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)

    def _begin(self, template: Hashable, mine: _Template, work: Callable[[], T]) -> Future[T]:
        loop = asyncio.get_running_loop()
        began = loop.time()

        def ended(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._note_end, template, mine, began)

        running = self._threads.submit(work)
        running.add_done_callback(ended)
        return running

    def _note_end(self, template: Hashable, mine: _Template, began: float) -> None:
        took_s = asyncio.get_running_loop().time() - began
        mine.took_s += (took_s - mine.took_s) * (SMOOTHING if mine.took_s else 1.0)
        self._end(template, mine)

    def _end(self, template: Hashable, mine: _Template) -> None:
        mine.is_busy = False
        self._free += 1
        self._templates.move_to_end(template)  # behind those who came meanwhile
        self._forget_idle(template, mine)
        self._give_turns()

    def _forget_idle(self, template: Hashable, mine: _Template) -> None:
        if not mine.waiting and not mine.is_busy:
            self._templates.pop(template, None)
