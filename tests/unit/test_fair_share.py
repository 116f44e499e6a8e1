"""A flood of requests takes turns with others, and one step of it at a time with those who chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from guanaco_server.http import fair_share
from guanaco_server.http.errors import ErrorForms
from guanaco_server.http.fair_share import FairShare, Places
from guanaco_server.observability.metrics import Metrics


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


class Flood:
    """Requests that work in steps; ``in_progress`` counts those that have begun and not ended."""

    def __init__(self, at_once: int = 2) -> None:
        self.metrics = Metrics()
        self.is_waited_for = False
        self.share = FairShare(ErrorForms(), self.metrics, lambda: self.is_waited_for, at_once)
        self.began: list[str] = []
        self.steps = 0
        self.in_progress = self.most = 0
        self.is_over = asyncio.Event()

    async def work(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began.append(scope["path"])
        self.in_progress += 1
        self.most = max(self.most, self.in_progress)
        for _ in range(20):
            self.steps += 1
            await asyncio.sleep(0)
        self.in_progress -= 1

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began.append(scope["path"])
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await self.is_over.wait()

    def ask(self, path: str, address: str = "flood", key: str = "") -> asyncio.Task[None]:
        return self._begin(self.work, path, address, key)

    def open_stream(self, path: str) -> asyncio.Task[None]:
        return self._begin(self.stream, path, "flood", "")

    def _begin(
        self, app: Callable[..., object], path: str, address: str, key: str
    ) -> asyncio.Task[None]:
        headers = [(b"authorization", key.encode())] if key else []
        scope: Scope = {"type": "http", "path": path, "headers": headers}

        async def send(_message: Message) -> None: ...

        return asyncio.create_task(self.share.answer(address, app, scope, receive, send))  # type: ignore[arg-type]


async def test_few_requests_are_worked_on_at_once() -> None:
    flood = Flood()
    await asyncio.gather(*(flood.ask(f"/{number}") for number in range(20)))
    assert flood.most == 2
    assert len(flood.began) == 20


async def test_the_loop_makes_a_pass_between_two_steps() -> None:
    flood = Flood(at_once=8)
    asked = asyncio.gather(*(flood.ask(f"/{number}") for number in range(8)))
    most = before = 0
    while not asked.done():
        await asyncio.sleep(0)
        most, before = max(most, flood.steps - before), flood.steps
    assert flood.steps == 8 * 20
    assert most == 1


async def test_who_holds_the_write_lock_waits_for_no_step() -> None:
    flood = Flood(at_once=8)
    asked = asyncio.gather(*(flood.ask(f"/{number}") for number in range(8)))
    while len(flood.began) < 8:
        await asyncio.sleep(0)
    flood.is_waited_for, before, passes = True, flood.steps, 0
    while not asked.done():
        await asyncio.sleep(0)
        passes += 1
    assert flood.steps - before > 5 * passes, "all of them step in each pass"


@pytest.mark.parametrize(("turns", "part"), [(0, 1), (1, 3)])
async def test_a_flood_leaves_much_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, turns: int, part: int
) -> None:
    now = 0.0
    pauses: list[float] = []
    flood = Flood(at_once=8)
    for _ in range(turns):
        flood.metrics.note_reply_begun()
    loop = asyncio.get_running_loop()

    def tick() -> float:
        nonlocal now
        now += 0.0025  # the clock is read before and after each step
        return now

    def call_later(delay: float, callback: Callable[..., object], *args: object) -> object:
        if delay < fair_share.HOLD_S:
            pauses.append(delay)
        return later(0, callback, *args)

    later = loop.call_later
    monkeypatch.setattr(fair_share.time, "thread_time", tick)
    monkeypatch.setattr(loop, "call_later", call_later)
    await asyncio.gather(*(flood.ask(f"/{number}") for number in range(8)))
    assert flood.steps == 8 * 20
    assert len(pauses) >= 140, "nearly every step was followed by one"
    assert {round(pause, 6) for pause in pauses} == {part * 0.0025}


@pytest.mark.parametrize(("address", "key"), [("other", ""), ("flood", "other")])
async def test_other_caller_waits_for_a_turn_not_the_flood(address: str, key: str) -> None:
    flood = Flood()
    asked = [flood.ask(f"/{number}") for number in range(50)]
    await asyncio.sleep(0)
    asked.append(flood.ask("/other", address, key))
    await asyncio.gather(*asked)
    assert flood.began.index("/other") <= 4


async def test_a_stream_that_has_begun_takes_no_place() -> None:
    flood = Flood()
    streams = [flood.open_stream(f"/stream-{number}") for number in range(5)]
    await flood.ask("/other")
    assert len(flood.began) == 6
    flood.is_over.set()
    await asyncio.gather(*streams)


async def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    flood = Flood(at_once=1)
    asked = [flood.ask(f"/{number}") for number in range(6)]
    await asyncio.sleep(0)
    for task in asked[:4]:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await flood.ask("/other")
    assert flood.began[-3:] == ["/4", "/5", "/other"]


async def test_a_place_that_does_not_come_is_said_so() -> None:
    places = Places(1)
    await places.take("a", b"", 1)
    with pytest.raises(TimeoutError):
        await places.take("b", b"", 0.01)
    places.give_back()
    await places.take("c", b"", 0.01)


async def test_the_newest_of_the_longest_queue_is_refused() -> None:
    places = Places(1, most_waiting=3)
    await places.take("a", b"", 1)
    begun: list[str] = []

    async def ask(name: str, address: str, key: bytes) -> None:
        try:
            await places.take(address, key, 60)
        except TimeoutError:
            begun.append(f"{name} refused")
        else:
            begun.append(name)
            places.give_back()

    asked = []
    for name, address, key in (
        ("flood 1", "a", b"flood"),
        ("flood 2", "a", b"flood"),
        ("flood 3", "a", b"flood"),
        ("flood 4", "a", b"flood"),
        ("other key", "a", b"other"),
        ("other address", "b", b"flood"),
    ):
        asked.append(asyncio.create_task(ask(name, address, key)))
        await asyncio.sleep(0)
    places.give_back()
    await asyncio.gather(*asked)
    assert sorted(begun[:2]) == ["flood 3 refused", "flood 4 refused"]
    assert begun[2:] == ["flood 1", "other address", "other key", "flood 2"]
