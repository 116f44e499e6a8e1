"""The official OpenAI client, unchanged, against the platform over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI

from guanaco.accounts import Role
from guanaco.submissions import GenerationParams
from guanaco_server.database.database import Database
from guanaco_server.deployments.memory_server import Script
from tests.fixtures.served_app import served
from tests.fixtures.world import World

HELLO = [
    {"role": "system", "content": "Luna keeps a lighthouse."},
    {"role": "user", "content": "Hello"},
]


@asynccontextmanager
async def talking(
    database: Database, *scripts: Script
) -> AsyncIterator[tuple[World, AsyncOpenAI, str]]:
    world = World(database, *scripts)
    published = await world.publish(
        await world.account(Role.DEVELOPER, "ada"), params=GenerationParams()
    )
    key = await world.key(Role.BACKEND, "app")
    async with (
        served(world.app) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield world, client, published


async def test_a_chat_is_completed_whole_and_streamed(database: Database) -> None:
    async with talking(database) as (world, client, model):
        whole = await client.chat.completions.create(
            model="guanaco/auto", messages=HELLO, max_completion_tokens=9, stop=["Sam:"]
        )
        assert whole.choices[0].message.content == "Hello from memory."
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == 10
        asked = world.model_server.generations[-1]
        assert (asked.params.max_output_tokens, asked.params.stopping_words) == (9, ["Sam:"])
        assert "Luna keeps a lighthouse." in asked.prompt
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=model, messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        ]
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert said == "Hello from memory."
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None


async def test_a_prompt_is_completed_as_it_is(database: Database) -> None:
    async with talking(database) as (world, client, model):
        answer = await client.completions.create(model=model, prompt="Once upon a time")
        assert answer.choices[0].text == "Hello from memory."
        assert world.model_server.generations[-1].prompt == "Once upon a time"
        streamed = await client.completions.create(model=model, prompt="Once", stream=True)
        assert "".join([c.choices[0].text async for c in streamed]) == "Hello from memory."


async def test_models_are_auto_and_what_is_live_and_a_developer_sees_her_own(
    database: Database,
) -> None:
    async with talking(database) as (world, client, model):
        other = await world.publish(await world.account(Role.DEVELOPER, "bob"), "bob-tiny_v1")
        assert [one.id async for one in client.models.list()] == ["guanaco/auto", model, other]
        hers = client.with_options(api_key=await world.key(Role.DEVELOPER, "ada"))
        assert [one.id async for one in hers.models.list()] == [model]
        await hers.chat.completions.create(model=model, messages=HELLO)
        for name in ("guanaco/auto", other):
            with pytest.raises(openai.NotFoundError):
                await hers.chat.completions.create(model=name, messages=HELLO)


async def test_a_chat_with_consent_is_recorded_and_can_be_rated(database: Database) -> None:
    async with talking(database) as (world, client, model):
        first = await client.chat.completions.create(
            model="guanaco/auto", messages=HELLO, user="u1", metadata={"consent": "true"}
        )
        named = first.model_dump()["guanaco"]["conversation_id"]
        history = [
            *HELLO,
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
        await client.chat.completions.create(
            model="guanaco/auto",
            messages=history,
            user="u1",
            metadata={"consent": "true", "conversation_id": named},
        )
        http = world.http_with({"Authorization": f"Bearer {client.api_key}"})
        found = (await http.get(f"/conversations/{named}")).json()
        assert (found["submission_id"], len(found["messages"])) == (model, 4)
        rated = await http.post(f"/conversations/{named}/feedback", json={"thumbs_up": True})
        assert rated.status_code == 201


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "last message must be the user's"),
        ({"n": 3}, "n: "),
        ({"temperature": 5}, "temperature"),
        ({"stop": ["x" * 65]}, "stop"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "16384"),
        ({"metadata": {"consent": "true"}}, "needs model 'guanaco/auto' and a user"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_a_sentence(
    database: Database, changes: dict[str, object], says: str
) -> None:
    async with talking(database) as (_, client, model):
        asked = {"model": model, "messages": HELLO} | changes
        with pytest.raises(openai.BadRequestError, match=says):
            await client.chat.completions.create(**asked)  # type: ignore[call-overload]


async def test_errors_are_openais_with_our_sentences(database: Database) -> None:
    async with talking(database, Script((), fault="died")) as (_, client, model):
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model=model, messages=HELLO)
        assert failed.value.code == "model_unavailable"
        assert failed.value.response.headers["retry-after"]
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
