"""Tests that what computes for nobody in particular takes no thread from those who wait."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

from guanaco_server.runtime import threads
from guanaco_server.runtime.threads import Threads

SERVER = Path(__file__).parents[2] / "server" / "guanaco_server"
OWN_PROCESS = SERVER / "engine"
LOOPS_OWN = re.compile(r"\bto_thread\(|\brun_in_executor\(\s*None")


def test_nothing_uses_the_event_loops_own_executor() -> None:
    files = [path for path in SERVER.rglob("*.py") if OWN_PROCESS not in path.parents]
    assert files
    assert [str(path) for path in files if LOOPS_OWN.search(path.read_text())] == []


async def test_long_work_of_other_kinds_holds_up_no_chat() -> None:
    pools = {name: one for name, one in vars(threads).items() if isinstance(one, Threads)}
    is_over = threading.Event()
    busy = [
        asyncio.ensure_future(one.run(is_over.wait))
        for name, one in pools.items()
        if name not in ("CHATS", "PROCESSES")
        for _ in range(20)
    ]
    try:
        assert await threads.CHATS.run(lambda: "chats") == "chats"
        assert await threads.PROCESSES.run(lambda: "processes") == "processes"
    finally:
        is_over.set()
        await asyncio.gather(*busy)


async def test_much_work_of_one_owner_waits_for_others() -> None:
    one = Threads("one", 1)
    may_go = threading.Event()
    order: list[str] = []

    def work(name: str) -> None:
        may_go.wait()
        order.append(name)

    first = [asyncio.ensure_future(one.run_in_turn("a", work, f"a{n}")) for n in range(3)]
    await asyncio.sleep(0)
    second = asyncio.ensure_future(one.run_in_turn("b", work, "b0"))
    await asyncio.sleep(0)
    may_go.set()
    await asyncio.gather(*first, second)
    assert order == ["a0", "b0", "a1", "a2"]


async def test_what_is_started_for_a_caller_who_left_is_ended() -> None:
    begun, go_on, has_ended = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    def start() -> str:
        begun.set()
        go_on.wait()
        return "a process"

    def end(started: str) -> None:
        ended.append(started)
        has_ended.set()

    waiting = asyncio.create_task(threads.PROCESSES.start(start, end))
    await threads.PROCESSES.run(begun.wait)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    go_on.set()
    await threads.PROCESSES.run(has_ended.wait)
    assert ended == ["a process"]
    assert await threads.PROCESSES.start(lambda: "another", end) == "another"
    assert ended == ["a process"]
