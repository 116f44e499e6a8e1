"""Prompts of every kind as an experiment's variants, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from guanaco_server.database.database import Database
from tests.fixtures.world import WORD_TOKENIZER
from tests.integration.test_experiments import Trying, make, say, user_of

CHAT_TEMPLATE = b"{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"
BY_TEMPLATE = {"kind": "chat_template"}
AS_TEXT = {
    "kind": "file",
    "parts": [
        {"name": "chat", "each": "turn", "truncation_priority": 1, "content": "{{ name }} says {{ message }}\n"},
        {"name": "reply", "content": "{{ bot_name }} says"},
    ],
}  # fmt: skip
AS_MESSAGES = {
    "kind": "file",
    "render": "chat_template",
    "parts": [
        {"name": "rule", "role": "system", "content": "Be {{ bot_name }}."},
        {"name": "chat", "each": "turn", "truncation_priority": 1, "content": "{{ message }}"},
    ],
}
BROKEN = {
    "kind": "file",
    "parts": [{"name": "chat", "each": "turn", "content": "{{ message / 0 }}"}],
}


def experiment(*variants: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": f"v{number}"} | variant for number, variant in enumerate(variants)]
    return {"name": "prompts", "variants": named}


@pytest.fixture
async def world(database: Database) -> AsyncIterator[Trying]:
    world = Trying(database)
    yield world
    await world.prompts.close()


async def test_a_variant_may_have_a_prompt_of_any_kind(world: Trying) -> None:
    files = {"tokenizer.json": WORD_TOKENIZER, "chat_template.jinja": CHAT_TEMPLATE}
    await world.store_artifact("a" * 64, files)
    admin, backend = await world.begin()
    kinds = experiment(
        {"formatter": AS_TEXT},
        {"formatter": BY_TEMPLATE, "model": "new_v1"},
        {"formatter": AS_MESSAGES, "model": "old_v1"},
    )
    await make(admin, kinds)
    read = (await admin.get("/experiments/prompts")).json()
    assert read["variants"][1]["formatter"] == BY_TEMPLATE
    for variant, prompt in (
        ("v0", "Luna says Ahoy!\nYou says Hi\nLuna says"),
        ("v1", "<system> Luna keeps a lighthouse. <assistant> Ahoy! <user> Hi <assistant>"),
        ("v2", "<system> Be Luna. <assistant> Ahoy! <user> Hi <assistant>"),
    ):
        conversation = await world.open(backend, await user_of(world, kinds, variant))
        assert await world.variant(conversation) == variant
        await say(backend, conversation)
        assert world.model_server.generations[-1].prompt == prompt


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ({"formatter": BY_TEMPLATE}, "The variant v1 uses a model's chat template"),
        ({"formatter": AS_MESSAGES}, "The variant v1 uses a model's chat template"),
        (
            {"formatter": BY_TEMPLATE, "model": "new_v1"},
            "The variant v1: The model's repo has no chat template.",
        ),
        ({"formatter": BROKEN}, "The variant v1: "),
        ({"formatter": BROKEN, "model": "new_v1"}, "The variant v1: "),
        ({"formatter": {"kind": "poem"}}, "kind"),
    ],
)
async def test_unrenderable_prompt_is_refused_with_its_experiment(
    world: Trying, variant: dict[str, Any], says: str
) -> None:
    admin, _ = await world.begin()
    answer = await admin.post("/experiments", json=experiment({}, variant))
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert says in answer.json()["detail"]
    assert (await admin.get("/experiments")).json() == []
