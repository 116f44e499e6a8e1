"""Prompts of every kind, through the real service, store and template process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import BadChatTemplate, MessageTooLong, MissingFile, PromptFailed
from guanaco.prompts import ChatTemplatePrompt, Prompt, PromptFile, PromptFormatter, PromptPart
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.formats.manifest import Manifest
from guanaco_server.prompts.room import PromptsRoom, build_prompts
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.tokenization.service import Tokenizers
from tests.fixtures.tokenizers import tokenizer_of

BOT = Bot(
    name="Nia", memory="Nia keeps a lighthouse.", prompt="It is night.", first_message="Ahoy!"
)
KEY = "a" * 64
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (  # no system message, roles in turn, and the beginning that the tokenizer adds too
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
)
FILE = PromptFile(
    parts=(
        PromptPart(name="persona", role="system", content="{{ bot_name }}: {{ memory }}\n"),
        PromptPart(
            name="scenario",
            role="system",
            content="{% if prompt %}Scene: {{ prompt }}\n{% endif %}",
            truncation_priority=2,
        ),
        PromptPart(name="style", role="system", content="Be brief.\n", truncation_priority=3),
        PromptPart(
            name="chat", each="turn", content="{{ name }}> {{ message }}\n", truncation_priority=2
        ),
        PromptPart(name="reply", role="system", content="{{ bot_name }}>"),
    )
)


def turns(count: int) -> list[Turn]:
    senders = (Sender.USER, Sender.BOT)
    return [Turn(sender=senders[n % 2], content=f"{n} hello there") for n in range(count)]


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def room(store: MemoryStore) -> AsyncIterator[PromptsRoom]:
    room = build_prompts(store)
    yield room
    await room.service.close()


@pytest.fixture
def prompts(room: PromptsRoom) -> PromptService:
    return room.service


@pytest.fixture
def tokenizers(room: PromptsRoom) -> Tokenizers:
    return room.tokenizers


async def put(store: MemoryStore, template: Any = CHATML, kind: str = "llama_3") -> None:
    config = {"chat_template": template, "bos_token": "<s>"}
    files = {
        "tokenizer.json": tokenizer_of(kind).to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    manifest = Manifest(
        key=KEY, repo="a/b", commit="c" * 40, files=(), tensors_bytes=0, tensors=(), tool_versions={}, created_at=FixedClock().now(),
    )  # fmt: skip
    store.stage(KEY, manifest, files)
    await store.publish(KEY)


async def rendered(
    prompts: PromptService, formatter: Prompt, said: list[Turn], budget: int = 1_000, bot: Bot = BOT
) -> str:
    return await prompts.render(
        formatter=formatter, artifact_key=KEY, max_input_tokens=budget, bot=bot, user_name="Sam", turns=said,
    )  # fmt: skip


async def test_what_was_counted_is_not_counted_again(
    prompts: PromptService, store: MemoryStore, tokenizers: Tokenizers
) -> None:
    await put(store)
    made = await rendered(prompts, PromptFormatter(), turns(3))
    assert made.endswith(
        "Nia: Ahoy!\nSam: 0 hello there\nNia: 1 hello there\nSam: 2 hello there\nNia:"
    )
    tokenizers.close()
    await store.delete(KEY)
    assert await rendered(prompts, PromptFormatter(), turns(3)) == made


async def test_a_chat_template_gets_system_message_greeting_and_turns(
    prompts: PromptService, store: MemoryStore
) -> None:
    await put(store)
    assert await rendered(prompts, ChatTemplatePrompt(), turns(1)) == (
        "<|im_start|>system\nNia keeps a lighthouse.\nIt is night.<|im_end|>\n<|im_start|>assistant\nAhoy!<|im_end|>\n"
        "<|im_start|>user\n0 hello there<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_missing_system_role_is_merged_into_the_first_user_message(
    prompts: PromptService, store: MemoryStore
) -> None:
    await put(store, STRICT)
    assert await rendered(prompts, ChatTemplatePrompt(), turns(1)) == (
        "<|im_start|>user\nNia keeps a lighthouse.\nIt is night.\nAhoy!\n0 hello there<|im_end|>\n"
    )


@pytest.mark.parametrize("template", [CHATML, STRICT], ids=["chatml", "strict"])
@pytest.mark.parametrize("kind", ["llama_3", "llama_2"])
async def test_a_chat_template_keeps_to_the_budget_and_its_beginning(
    prompts: PromptService, store: MemoryStore, template: str, kind: str
) -> None:
    await put(store, template, kind)
    before, beginnings, ending = "", 0, "<|im_start|>assistant\n"
    for end in range(1, 60, 2):
        made = await rendered(prompts, ChatTemplatePrompt(), turns(end), budget=400)
        assert len(tokenizer_of(kind).encode(made)) <= 400
        assert "Nia keeps a lighthouse." in made
        assert f"{end - 1} hello there" in made
        beginnings += not made.startswith(before.removesuffix(ending))
        before = made
    assert 0 < beginnings < 12
    with pytest.raises(MessageTooLong):
        await rendered(prompts, ChatTemplatePrompt(), turns(1), budget=16)


async def test_prompt_file_becomes_text_and_is_cut_by_priority(
    prompts: PromptService, store: MemoryStore
) -> None:
    await put(store)
    assert await rendered(prompts, FILE, turns(1)) == (
        "Nia: Nia keeps a lighthouse.\nScene: It is night.\nBe brief.\nNia> Ahoy!\nSam> 0 hello there\nNia>"
    )
    kept = [await rendered(prompts, FILE, turns(end), budget=150) for end in range(1, 40, 2)]
    assert all(text.startswith("Nia: Nia keeps a lighthouse.\nScene") for text in kept)
    style = ["Be brief." in text for text in kept]
    assert style == sorted(style, reverse=True)  # it goes before any turn does, and stays away
    assert not style[-1]
    assert "Ahoy!" not in kept[-1]


async def test_a_prompt_file_may_go_through_the_chat_template(
    prompts: PromptService, store: MemoryStore
) -> None:
    await put(store)
    made = await rendered(prompts, FILE.model_copy(update={"render": "chat_template"}), turns(1))
    assert made.startswith("<|im_start|>system\nNia: Nia keeps a lighthouse.\n")
    assert "<|im_start|>user\nSam> 0 hello there\n<|im_end|>" in made


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{{ secret }}", "'secret' is undefined"),
        ("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "it takes more than"),
        ("{{ memory.__class__ }}", "forbids"),
        ("{% if %}", "line 1"),
    ],
)  # fmt: skip
async def test_a_part_that_cannot_be_rendered_is_named(
    prompts: PromptService, content: str, says: str
) -> None:
    part = PromptPart(name="mine", content=content)
    with pytest.raises(PromptFailed, match="The prompt file's part 'mine' cannot be") as failed:
        await prompts.check(PromptFile(parts=(part, FILE.turn_part)), {}, BOT)
    assert says in failed.value.detail


async def test_missing_or_hiding_chat_template_is_refused(
    prompts: PromptService,
) -> None:
    with pytest.raises(MissingFile, match="has no chat template"):
        await prompts.check(ChatTemplatePrompt(), {"tokenizer_config.json": b"{}"}, BOT)
    await prompts.check(ChatTemplatePrompt(), {"chat_template.jinja": CHATML.encode()}, BOT)
    for template in (b"nothing of it", b"{% for a in range(9**9) %}{% endfor %}", b"{{ x.y.z }}"):
        with pytest.raises(BadChatTemplate, match="cannot be rendered"):
            await prompts.check(ChatTemplatePrompt(), {"chat_template.jinja": template}, BOT)


LLAMA_2 = (  # a reply begins behind a space that is not part of what asks for it
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
TERSE = PromptFormatter(bot_template="<bot>{message}</bot>", response_template="<bot>")


@pytest.mark.parametrize(
    ("formatter", "template", "end"),
    [
        (PromptFormatter(), CHATML, "\nNia: Once upon"),
        (TERSE, CHATML, "<bot>Once upon"),
        (PromptFormatter(response_template="Reply"), CHATML, "Reply Once upon"),
        (FILE, CHATML, "\nNia> Once upon"),
        (ChatTemplatePrompt(), CHATML, "hello there<|im_end|>\n<|im_start|>assistant\nOnce upon"),
        (ChatTemplatePrompt(), LLAMA_2, "hello there [/INST] Once upon"),
        (ChatTemplatePrompt(), THINKING, "assistant\n<think>\n\n</think>\n\nOnce upon"),
    ],
)
async def test_continued_reply_stands_where_the_model_would_write_it(
    prompts: PromptService, store: MemoryStore, formatter: Prompt, template: str, end: str
) -> None:
    await put(store, template)

    async def begun(text: str, budget: int = 1_000) -> str:
        return await prompts.render(
            formatter=formatter, artifact_key=KEY, max_input_tokens=budget, bot=BOT, user_name="Sam", turns=turns(41), begun=text,
        )  # fmt: skip

    made = await begun("Once upon")
    assert made.endswith(end), made
    assert "0 hello there" in made
    shorter = await begun("Once upon a time " * 8, budget=250)
    assert " 0 hello there" not in shorter
    assert shorter.endswith("Once upon a time ")
    with pytest.raises(MessageTooLong):
        await begun("Once upon a time " * 100, budget=250)
