"""Bounds what a flood of requests takes of the event loop, on which those who chat wait for each step of their replies.

    chat gateway        never waits here: its routes are in front of this
    every other route   waits for one of a few places; callers take turns, however many requests each has sent
    each of its steps   waits until the loop has made a pass since another request's step, and, while further steps wait,
                        has had as much time for others as that step computed, and three times as much while replies are
                        under way: a flood has at most half of the loop, and a quarter where people chat

So a step of a reply waits for one step of the flood, where it waited for as many as there were requests under way.
A request that holds SQLite's write lock does not wait between its steps: chats wait for that lock.
A request needs its place while it computes: it gives it up when it begins to stream, and at the latest after
``HOLD_S``, because one that takes longer waits for something.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco.errors import Overloaded
from guanaco_server.http.errors import ErrorForms
from guanaco_server.observability.http import route_template
from guanaco_server.observability.metrics import Metrics

AT_ONCE = 8
HOLD_S = 0.25
PATIENCE_S = 20.0
MOST_WAITING = 512  # of one address: on a slow machine some 30 are answered in a second, so the last would wait for PATIENCE_S
SHARE_OF_OTHERS = 3.0  # of the time that a step computed, while replies are under way
LEAST_PAUSE_S = 0.001  # the finest that the loop's timers can do
PROBES = frozenset(("/healthz", "/readyz", "/metrics"))  # an operator's tools must not wait
KEY_BYTES = 40  # of an Authorization header, more than tell two callers apart
TELL_S = 10.0
WHY = "There are more requests than the platform can work on."

logger = logging.getLogger(__name__)

Turns = deque[asyncio.Future[None]]


class Places:
    """A few places. Waiting requests are served in turns: by address, and by the keys of one address. Belongs to one event loop.

    Where ``most_waiting`` of an address wait, the newest of the key with the most is refused: a flood crowds out itself.
    """

    def __init__(
        self,
        count: int,
        most_waiting: int = MOST_WAITING,
        note_waiting: Callable[[int], None] = lambda _change: None,
    ) -> None:
        self._free = count
        self._most_waiting = most_waiting
        self._note_waiting = note_waiting
        self._waiting: OrderedDict[str, OrderedDict[bytes, Turns]] = OrderedDict()

    async def take(self, address: str, key: bytes, patience_s: float) -> None:
        """Wait for a place; TimeoutError when none comes in time, or too many wait."""
        if self._free:
            self._free -= 1
            return
        turn = self._queue(address, key)
        self._note_waiting(1)
        try:
            async with asyncio.timeout(patience_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back()  # it came in the very moment of leaving
            else:
                self._leave(address, key, turn)
            raise
        finally:
            self._note_waiting(-1)

    def _queue(self, address: str, key: bytes) -> asyncio.Future[None]:
        keys = self._waiting.setdefault(address, OrderedDict())
        if sum(map(len, keys.values())) >= self._most_waiting:
            longest = max(reversed(keys), key=lambda one: len(keys[one]))
            if len(keys.get(key, ())) + 1 >= len(keys[longest]):
                raise TimeoutError
            refused = keys[longest].pop()
            if not refused.done():
                refused.set_exception(TimeoutError())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keys.setdefault(key, deque()).append(turn)
        return turn

    def _leave(self, address: str, key: bytes, turn: asyncio.Future[None]) -> None:
        """Take what left out of its queue, if it is still there."""
        keys = self._waiting.get(address, OrderedDict())
        with contextlib.suppress(KeyError, ValueError):
            keys[key].remove(turn)
            if not keys[key]:
                del keys[key]
            if not keys:
                del self._waiting[address]

    def give_back(self) -> None:
        """Let the next one have the place."""
        while self._waiting:
            turn = self._next()
            if not turn.done():  # else it has left
                turn.set_result(None)
                return
        self._free += 1

    def _next(self) -> asyncio.Future[None]:
        address, keys = self._waiting.popitem(last=False)
        key, turns = keys.popitem(last=False)
        turn = turns.popleft()
        if turns:
            keys[key] = turns  # behind the others
        if keys:
            self._waiting[address] = keys
        return turn


class _Place:
    """One request's place, given back once."""

    def __init__(self, places: Places) -> None:
        self._places: Places | None = places
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.give_back)

    def give_back(self) -> None:
        if self._places is not None:
            self._timer.cancel()
            self._places.give_back()
            self._places = None


class _Steps:
    """Lets one request's step run in each pass of the event loop, and in a part of its time. Belongs to one event loop."""

    def __init__(self, metrics: Metrics, is_waited_for: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_waited_for = is_waited_for
        self._is_free = True
        self._spent_s = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def run(self, work: Coroutine[Any, Any, None], scope: Scope) -> _Stepped:
        return _Stepped(self, work, scope)

    def take(self) -> asyncio.Future[None] | None:
        """Return None if a step may run now, otherwise what to wait for."""
        if self._is_free:
            self._begin()
            return None
        if self._is_waited_for():
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    def _begin(self) -> None:
        self._is_free = False
        asyncio.get_running_loop().call_soon(self._end)

    def note(self, spent_s: float, scope: Scope) -> None:
        self._spent_s += spent_s
        if spent_s >= LEAST_PAUSE_S:
            self._metrics.note_step(route_template(scope), spent_s)

    def _end(self) -> None:
        """A pass is over: wake the next one, whose step runs in the following pass."""
        if self._waiting and self._spent_s >= LEAST_PAUSE_S:
            part = SHARE_OF_OTHERS if self._metrics.turns_in_flight else 1.0
            pause_s, self._spent_s = part * self._spent_s, 0.0
            asyncio.get_running_loop().call_later(pause_s, self._end)
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._begin()
                return
        self._is_free, self._spent_s = True, 0.0


class _Stepped:
    """Awaits a coroutine, each of whose steps waits for its turn."""

    def __init__(self, steps: _Steps, work: Coroutine[Any, Any, None], scope: Scope) -> None:
        self._steps = steps
        self._work = work
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, None]:
        step: Any = self._work.send
        given: Any = None
        while True:
            if (turn := self._steps.take()) is not None:
                try:
                    yield from turn
                except BaseException as error:  # noqa: BLE001 - it is for the coroutine
                    step, given = self._work.throw, error
            began = time.thread_time()  # not what another process had of the processor meanwhile
            try:
                waited = step(given)
            except StopIteration:
                return
            finally:
                self._steps.note(time.thread_time() - began, self._scope)
            try:
                given = yield waited
                step = self._work.send
            except BaseException as error:  # noqa: BLE001 - it is for the coroutine
                step, given = self._work.throw, error


class FairShare:
    """``is_waited_for`` tells of the task that calls it whether it holds what chats wait for."""

    def __init__(
        self,
        forms: ErrorForms,
        metrics: Metrics,
        is_waited_for: Callable[[], bool],
        at_once: int = AT_ONCE,
    ) -> None:
        self._forms = forms
        self._places = Places(at_once, note_waiting=metrics.note_requests_waiting)
        self._steps = _Steps(metrics, is_waited_for)
        self._refused, self._told_at = 0, float("-inf")

    async def answer(
        self, address: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Have the app answer when it is this caller's turn."""
        try:
            await self._places.take(address, _key(scope), PATIENCE_S)
        except TimeoutError:
            self._note_refusal()
            await self._forms.of(scope["path"]).answer(Overloaded(WHY))(scope, receive, send)
            return
        place = _Place(self._places)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("more_body"):
                place.give_back()
            await send(message)

        try:
            await self._steps.run(_called(app, scope, receive, send_and_note), scope)
        finally:
            place.give_back()

    def _note_refusal(self) -> None:
        self._refused += 1
        if time.monotonic() > self._told_at + TELL_S:
            logger.warning("more requests than can be worked on: %d refused", self._refused)
            self._refused, self._told_at = 0, time.monotonic()


async def _called(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def _key(scope: Scope) -> bytes:
    """Return the beginning of the Authorization header, if there is one."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value[:KEY_BYTES])
    return b""
