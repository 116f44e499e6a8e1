"""Tests whose template is rendered next, with work that ends when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from guanaco.errors import Overloaded
from guanaco_server.prompts.templates import queue as template_queue
from guanaco_server.prompts.templates.queue import TemplateQueue

SOON = 60.0


class Kitchen:
    """Two threads; each piece of work blocks until it is let go."""

    def __init__(self) -> None:
        self.queue = TemplateQueue()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Condition()

    def ask(self, name: str, within_s: float = SOON) -> asyncio.Task[str]:
        """``a1`` is the first prompt of template a."""
        self._gates[name] = threading.Event()
        until = self._loop.time() + within_s
        return asyncio.create_task(self.queue.run(name[0], partial(self._work, name), until))

    def let_go(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()

    def let_all_go(self) -> None:
        self.let_go(*self._gates)

    async def until_begun(self, *names: str) -> None:
        await self._until(lambda: set(names) <= set(self.begun))

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(holds)

    def _work(self, name: str) -> str:
        self._tell(self.begun, name)
        assert self._gates[name].wait(20)
        self._tell(self.ended, name)
        return name.upper()

    def _tell(self, what: list[str], name: str) -> None:
        asyncio.run_coroutine_threadsafe(self._note(what, name), self._loop).result(20)

    async def _note(self, what: list[str], name: str) -> None:
        async with self._changed:
            what.append(name)
            self._changed.notify_all()


@pytest.fixture
async def kitchen() -> AsyncIterator[Kitchen]:
    kitchen = Kitchen()
    yield kitchen
    kitchen.let_all_go()
    await asyncio.to_thread(kitchen.queue.close)


async def test_one_prompt_of_a_template_renders_while_others_pass(
    kitchen: Kitchen,
) -> None:
    slow = [kitchen.ask(f"s{n}") for n in range(5)]
    await kitchen.until_begun("s0")
    other = kitchen.ask("o")
    await kitchen.until_begun("o")
    assert kitchen.begun == ["s0", "o"]
    kitchen.let_go("o")
    assert await other == "O"
    assert kitchen.ended == ["o"]
    kitchen.let_all_go()
    assert await asyncio.gather(*slow) == ["S0", "S1", "S2", "S3", "S4"]


async def test_templates_take_turns_however_many_prompts_of_one_wait(kitchen: Kitchen) -> None:
    first = [kitchen.ask(name) for name in ("a0", "b0")]
    await kitchen.until_begun("a0", "b0")
    waiting = [kitchen.ask(name) for name in ("a1", "a2", "a3", "c0", "d0")]
    await asyncio.sleep(0)
    kitchen.let_go("a0", "a1", "a2", "a3", "c0", "d0")
    await asyncio.gather(*waiting)
    kitchen.let_go("b0")
    await asyncio.gather(*first)
    assert kitchen.begun[2:] == ["c0", "d0", "a1", "a2", "a3"]


async def test_overfull_template_queue_refuses_only_its_own(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_queue, "MAX_WAITING", 2)
    taken = [kitchen.ask(name) for name in ("a0", "a1", "a2")]
    await kitchen.until_begun("a0")
    with pytest.raises(Overloaded, match="submission's template") as refused:
        await kitchen.ask("a3")
    assert refused.value.retry_after_s
    other = kitchen.ask("b0")
    await kitchen.until_begun("b0")
    kitchen.let_all_go()
    await asyncio.gather(*taken, other)
    again = kitchen.ask("a4")
    kitchen.let_all_go()
    assert await again == "A4"


async def test_of_a_template_that_takes_long_fewer_may_wait(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_queue, "MAX_WAIT_S", 1e-9)
    taken = [kitchen.ask(name) for name in ("a0", "a1", "a2")]
    await kitchen.until_begun("a0")
    kitchen.let_go("a0")
    await kitchen.until_begun("a1")
    with pytest.raises(Overloaded):
        await kitchen.ask("a3")
    kitchen.let_all_go()
    await asyncio.gather(*taken)


async def test_late_prompt_is_refused_and_those_behind_are_served(
    kitchen: Kitchen,
) -> None:
    first, late, behind = kitchen.ask("a0"), kitchen.ask("a1", within_s=0), kitchen.ask("a2")
    with pytest.raises(Overloaded):
        await late
    kitchen.let_all_go()
    assert await asyncio.gather(first, behind) == ["A0", "A2"]
    assert "a1" not in kitchen.begun


async def test_who_leaves_while_waiting_or_rendering_holds_nobody_up(kitchen: Kitchen) -> None:
    rendering, waiting, behind = kitchen.ask("a0"), kitchen.ask("a1"), kitchen.ask("a2")
    await kitchen.until_begun("a0")
    for task in (rendering, waiting):
        task.cancel()
    await asyncio.gather(rendering, waiting, return_exceptions=True)
    assert kitchen.begun == ["a0"], "its thread is taken until it has ended"
    kitchen.let_all_go()
    assert await behind == "A2"


async def test_failed_work_is_its_callers_and_the_next_is_served(
    kitchen: Kitchen,
) -> None:
    def broken() -> str:
        raise ValueError("no")

    until = asyncio.get_running_loop().time() + SOON
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await kitchen.queue.run("a", broken, until)
