"""A template that is slow but allowed: its own submission waits for it, and nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import BadChatTemplate, Overloaded, PromptFailed
from guanaco.prompts import ChatTemplatePrompt, PromptFile, PromptPart
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.formats.manifest import Manifest
from guanaco_server.prompts.room import build_prompts
from guanaco_server.prompts.service import PromptService
from guanaco_server.prompts.templates import process as template_process
from guanaco_server.prompts.templates.process import Job, TemplateFault, TemplateProcess
from guanaco_server.runtime.clock import FixedClock
from tests.fixtures.world import WORD_TOKENIZER

CHATML = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOOP = "{% for i in range(COUNT) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
SLOW = LOOP.replace("COUNT", "200") + CHATML  # 800,000 steps: some 10 ms
TOO_SLOW = LOOP.replace("COUNT", "2000") + CHATML  # 8,000,000 steps
BOT = Bot(name="Nia", memory="Nia keeps a lighthouse.")
SLOW_KEY, FAST_KEY = "5" * 64, "f" * 64


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def prompts(store: MemoryStore) -> AsyncIterator[PromptService]:
    service = build_prompts(store).service
    yield service
    await service.close()


async def put(store: MemoryStore, key: str, template: str) -> None:
    files = {
        "tokenizer.json": WORD_TOKENIZER,
        "tokenizer_config.json": json.dumps({"chat_template": template}).encode(),
    }
    manifest = Manifest(
        key=key, repo="a/b", commit="c" * 40, files=(), tensors_bytes=0, tensors=(), tool_versions={}, created_at=FixedClock().now(),
    )  # fmt: skip
    store.stage(key, manifest, files)
    await store.publish(key)


async def rendered(prompts: PromptService, key: str, text: str, within_s: float = 60) -> str:
    return await prompts.render(
        formatter=ChatTemplatePrompt(),
        artifact_key=key,
        max_input_tokens=1_000,
        bot=BOT,
        user_name="Sam",
        turns=[Turn(sender=Sender.USER, content=text)],
        within_s=within_s,
    )


@pytest.mark.slow
async def test_slow_template_delays_no_other_template_or_thread(
    store: MemoryStore, prompts: PromptService
) -> None:
    await put(store, SLOW_KEY, SLOW)
    await put(store, FAST_KEY, CHATML)
    await asyncio.gather(*(rendered(prompts, key, "Hi") for key in (SLOW_KEY, FAST_KEY)))
    slow = [asyncio.create_task(rendered(prompts, SLOW_KEY, f"Hi {n}")) for n in range(100)]
    await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    assert "Ahoy" in await rendered(prompts, FAST_KEY, "Ahoy")
    await asyncio.to_thread(lambda: None)
    assert sum(task.done() for task in slow) < 50
    assert all(await asyncio.gather(*slow))


async def test_prompt_nobody_waits_for_is_dropped_before_its_turn(
    store: MemoryStore, prompts: PromptService
) -> None:
    await put(store, SLOW_KEY, SLOW)
    await rendered(prompts, SLOW_KEY, "Hi")
    slow = [asyncio.create_task(rendered(prompts, SLOW_KEY, f"Hi {n}")) for n in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await rendered(prompts, SLOW_KEY, "Hi", within_s=0)
    assert all(await asyncio.gather(*slow))


async def test_a_slow_chat_template_is_refused_when_it_is_submitted(
    prompts: PromptService,
) -> None:
    files = {"chat_template.jinja": TOO_SLOW.encode()}
    with pytest.raises(BadChatTemplate, match=r"more than 500,000 steps"):
        await prompts.check(ChatTemplatePrompt(), files, BOT)
    await prompts.check(ChatTemplatePrompt(), {"chat_template.jinja": CHATML.encode()}, BOT)


async def test_a_template_slow_only_in_longer_conversations_is_refused(
    prompts: PromptService,
) -> None:
    trap = "{% if messages | length > 9 %}" + LOOP.replace("COUNT", "9000") + "{% endif %}" + CHATML
    with pytest.raises(BadChatTemplate, match=r"more than 500,000 steps"):
        await prompts.check(ChatTemplatePrompt(), {"chat_template.jinja": trap.encode()}, BOT)


async def test_a_slow_prompt_file_is_refused_when_it_is_submitted(prompts: PromptService) -> None:
    parts = (PromptPart(name="chat", each="turn", content=TOO_SLOW),)
    with pytest.raises(PromptFailed, match=r"more than 500,000 steps"):
        await prompts.check(PromptFile(parts=parts), {}, BOT)


async def test_a_prompts_steps_are_those_of_all_its_parts_together(
    store: MemoryStore, prompts: PromptService
) -> None:
    """Turns that no batch holds are rendered one by one."""
    part = PromptPart(
        name="chat",
        each="turn",
        content=LOOP.replace("COUNT", "4") + "{{ message }} ",  # 16,000 steps
        truncation_priority=1,
    )
    await put(store, FAST_KEY, CHATML)
    turns = [Turn(sender=Sender.USER, content=f"Hi {n}") for n in range(1_000)]
    with pytest.raises(PromptFailed, match=r"more than 5,000,000 steps"):
        await prompts.render(
            formatter=PromptFile(parts=(part,)),
            artifact_key=FAST_KEY,
            max_input_tokens=20_000,
            bot=BOT,
            user_name="Sam",
            turns=turns,
        )


def test_only_so_many_refused_templates_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template_process, "MAX_REFUSED", 1)
    process = TemplateProcess()
    try:
        endless = [LOOP.replace("COUNT", f"9000{n}") for n in range(2)]
        for template in endless:
            with pytest.raises(TemplateFault, match="more than"):
                process.render([Job(template, {})])
        kept = process._refused._until
        assert [len(key) for key in kept] == [32]
        with pytest.raises(TemplateFault, match="a moment ago"):
            process.render([Job(endless[1], {})])
    finally:
        process.close()
