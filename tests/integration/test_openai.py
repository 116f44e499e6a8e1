"""The official OpenAI client, unchanged, against the platform over a real socket."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI

from guanaco.accounts import Role
from guanaco.submissions import GenerationParams
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.served_app import served
from tests.fixtures.world import World

HELLO = [
    {"role": "system", "content": "Luna keeps a lighthouse."},
    {"role": "user", "content": "Hello"},
]


@asynccontextmanager
async def talking(
    database: Database, *scripts: Script, **params: int
) -> AsyncIterator[tuple[World, AsyncOpenAI, str]]:
    world = World(database, *scripts)
    published = await world.publish(
        await world.account(Role.DEVELOPER, "ada"), params=GenerationParams(**params)
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
        answer = await client.completions.create(model=model, prompt="Once upon a time", seed=7)
        assert world.model_server.generations[-1].seed == 7
        assert answer.choices[0].text == "Hello from memory."
        assert world.model_server.generations[-1].prompt == "Once upon a time"
        streamed = await client.completions.create(model=model, prompt="Once", stream=True)
        assert "".join([c.choices[0].text async for c in streamed]) == "Hello from memory."


async def test_no_account_finds_what_another_account_asked_in_the_cache(
    database: Database,
) -> None:
    async with talking(database) as (world, client, model):
        another = client.with_options(api_key=await world.key(Role.BACKEND, "another-app"))
        hers = client.with_options(api_key=await world.key(Role.DEVELOPER, "ada"))
        for asker in (client, another, hers):
            await asker.chat.completions.create(model=model, messages=HELLO)
            await asker.completions.create(model=model, prompt="Hello")
        salts = [one.cache_salt for one in world.model_server.generations]
        assert salts[::2] == salts[1::2], "an account finds what it asked itself"
        assert len({*salts}) == 3


async def test_models_are_auto_and_live_ones_and_the_developers_own(
    database: Database,
) -> None:
    async with talking(database) as (world, client, model):
        other = await world.publish(await world.account(Role.DEVELOPER, "bob"), "bob-tiny_v1")
        assert [one.id async for one in client.models.list()] == ["guanaco/auto", model, other]
        hers = client.with_options(api_key=await world.key(Role.DEVELOPER, "ada"))
        assert [one.id async for one in hers.models.list()] == [model]
        await hers.chat.completions.create(model=model, messages=HELLO)
        for recorded in ({}, {"user": "u1", "metadata": {"consent": "true"}}):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await hers.chat.completions.create(  # type: ignore[call-overload]
                    **{"model": "guanaco/auto", "messages": HELLO} | recorded
                )
            assert "own submissions only" in refused.value.message
        with pytest.raises(openai.PermissionDeniedError, match="GET /v1/models"):
            await hers.models.retrieve("guanaco/auto")
        for name in ("none/auto", other):
            with pytest.raises(openai.NotFoundError):
                await hers.chat.completions.create(model=name, messages=HELLO)
            with pytest.raises(openai.NotFoundError) as missing:
                await hers.models.retrieve(name)
            assert missing.value.code == "model_not_found"
            assert missing.value.type == "invalid_request_error"
        for name, owner in (("guanaco/auto", "guanaco"), (model, "ada")):
            found = await client.models.retrieve(name)
            assert (found.id, found.owned_by) == (name, owner)
            assert found.created > 1_600_000_000


async def test_an_answer_names_the_model_that_answered(database: Database) -> None:
    async with talking(database) as (_, client, model):
        for recorded in ({}, {"user": "u1", "metadata": {"consent": "true"}}):
            asked = {"model": "guanaco/auto", "messages": HELLO} | recorded
            whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
            assert whole.model == model
            streamed = await client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
            assert {chunk.model async for chunk in streamed} == {model}
        text = await client.completions.create(model="guanaco/auto", prompt="Once")
        assert text.model == model


async def test_each_v1_error_has_a_text_that_clients_show(database: Database) -> None:
    async with talking(database) as (_, client, model):
        stranger = client.with_options(api_key="wrong")
        refused: list[openai.APIStatusError] = []
        for calling in (
            stranger.models.list(),
            stranger.models.retrieve(model),
            stranger.chat.completions.create(model=model, messages=HELLO),
            client.models.retrieve("none"),
            client.embeddings.create(model=model, input="Hello"),
            client.files.list(),
            client.post("/models", cast_to=object),
            client.completions.create(model=model, prompt="x" * 300_000),
        ):
            with pytest.raises(openai.APIStatusError) as error:
                await calling
            refused.append(error.value)
        statuses = [one.status_code for one in refused]
        assert statuses == [401, 401, 401, 404, 404, 404, 405, 413]
        for one in refused:
            assert isinstance(one.body, dict)
            assert one.body["message"] in one.message
            assert one.code == one.body["code"]
            assert one.type


@pytest.mark.slow
async def test_chats_that_differ_late_go_to_all_submissions(
    database: Database,
) -> None:
    async with talking(database) as (world, client, _):
        for number in range(2, 5):
            await world.publish(await world.account(Role.DEVELOPER, "ada"), f"acme-tiny_v{number}")
        system = "You are a helpful assistant that answers briefly. " * 8
        for number in range(60):
            for _ in range(2):
                await client.chat.completions.create(
                    model="guanaco/auto",
                    user="7f0d3c1e-5f0e-4f0e-9f0e-000000000001",
                    messages=[
                        {"role": "system", "content": system},
                        {"role": "assistant", "content": "How can I help?"},
                        {"role": "user", "content": f"Question {number}"},
                    ],
                )
        asked = [one.model for one in world.model_server.generations]
        assert asked[::2] == asked[1::2], "the same chat has the same submission"
        assert len(Counter(asked)) == 4


async def test_auto_goes_where_room_is_or_says_there_is_none(
    database: Database,
) -> None:
    async with talking(database) as (world, client, model):
        other = await world.publish(await world.account(Role.DEVELOPER, "ada"), "other_v1")
        for name, artifact in ((model, "a" * 64), (other, "b" * 64)):
            await world.deployments.wish(Deployment(name, 1, artifact, 1_088))
            await world.deployments.mark_ready(name, f"memory://{name}")
        await world.deployments.note(model, capacity=0, applied_replicas=1)
        await world.routing.refresh()
        for number in range(12):
            said = [{"role": "user", "content": f"Question {number}"}]
            await client.chat.completions.create(model="guanaco/auto", messages=said)
        assert {one.model for one in world.model_server.generations} == {f"{other}#{'b' * 64}"}
        await world.deployments.note(other, capacity=0, applied_replicas=1)
        await world.routing.refresh()
        with pytest.raises(openai.InternalServerError) as full:
            await client.chat.completions.create(model="guanaco/auto", messages=HELLO)
        assert (full.value.status_code, full.value.code) == (503, "overloaded")
        assert full.value.response.headers["retry-after"]


async def test_auto_goes_where_the_request_fits(database: Database) -> None:
    async with talking(database, max_input_tokens=64) as (world, client, _):
        large = GenerationParams(max_input_tokens=1_024)
        await world.publish(await world.account(Role.DEVELOPER, "ada"), "large_v1", params=large)
        for number in range(6):
            said = [{"role": "user", "content": f"{number} " + "word " * 200}]
            answer = await client.chat.completions.create(model="guanaco/auto", messages=said)
            assert answer.model == "large_v1"
        said = [{"role": "user", "content": "word " * 2_000}]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="guanaco/auto", messages=said)


async def test_reply_is_never_longer_than_its_submission_allows(
    database: Database,
) -> None:
    async with talking(database, max_output_tokens=16) as (world, client, model):
        for changes in (
            {"max_tokens": 4_096},
            {"max_tokens": 100_000},
            {"max_completion_tokens": 17},
        ):
            await client.chat.completions.create(model=model, messages=HELLO, **changes)  # type: ignore[call-overload]
            assert world.model_server.generations[-1].params.max_output_tokens == 16
        await client.completions.create(model=model, prompt="Once", max_tokens=17)
        assert world.model_server.generations[-1].params.max_output_tokens == 16


async def test_nulls_and_what_changes_nothing_are_taken(database: Database) -> None:
    async with talking(database) as (world, client, model):
        said = await client.chat.completions.create(
            model=model,
            messages=[
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
                {"role": "user", "content": [{"type": "text", "text": "There?"}]},
            ],
            stream=None,
            stream_options=None,
            metadata=None,
            temperature=None,
            logit_bias={},
            tools=[],
            tool_choice="none",
            parallel_tool_calls=True,
            response_format={"type": "text"},
            modalities=["text"],
            n=1,
            seed=7,
            store=False,
            service_tier="auto",
            safety_identifier="someone",
            user="",
        )  # type: ignore[call-overload]
        assert said.choices[0].message.content == "Hello from memory."
        assert world.model_server.generations[-1].seed == 7


async def test_a_chat_is_posted_and_nothing_else(database: Database) -> None:
    async with talking(database) as (_, client, _model):
        for path in ("/chat/completions", "/completions"):
            with pytest.raises(openai.APIStatusError) as refused:
                await client.get(path, cast_to=object)
            assert (refused.value.status_code, refused.value.code) == (405, "method_not_allowed")
            assert refused.value.response.headers["allow"] == "POST"


@pytest.mark.both_databases
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


CANNOT_BE_DONE: list[tuple[dict[str, object], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "assistant", "content": "Hi"}]}, "last message must be the user's"),
    ({"messages": [{"role": "user", "content": " \n"}]}, "more than blanks"),
    ({"n": 3}, "n: It can only be 1 here."),
    ({"temperature": 5}, "temperature"),
    ({"stop": ["x" * 65]}, "stop"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "16384"),
    ({"metadata": {"consent": "true"}}, "recorded needs a user"),
    (
        {"model": "guanaco/auto", "metadata": {"consent": "true"}, "user": ""},
        "recorded needs a user",
    ),
    (
        {"model": "guanaco/auto", "metadata": {"consent": "true"}, "user": "u\x00"},
        "user: There is a NUL in the text, which cannot be stored",
    ),
    ({"metadata": {"bot_name": "two\nlines"}}, "bot_name: It should be 1 to 64 characters"),
    ({"metadata": {"user_name": "two\nlines"}}, "user_name: It should be 1 to 64 characters"),
    ({"metadata": {"conversation_id": "conv_1"}}, 'needs consent "true"'),
    (
        {"messages": [{"role": "system", "content": "x" * 10_000}] * 2 + HELLO},
        "the system messages have 20,0.. characters together; 16,384 are allowed",
    ),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"logit_bias": {"1": 5}}, "cannot do logit_bias: leave it out"),
    ({"top_logprobs": 3}, "cannot do top_logprobs"),
    ({"logprobs": True}, "logprobs: It can only be false here."),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prediction": {"type": "content", "content": "x"}}, "cannot do prediction"),
    (
        {"extra_body": {"top_k": 3, "min_p": 0.1}},
        "cannot do min_p, top_k|cannot do top_k, min_p",
    ),
    ({"store": True}, "store"),
    ({"seed": 2**63}, "seed"),
    ({"messages": [{"role": "user", "content": "Hi", "name": "Sam"}]}, "cannot do name"),
]


@pytest.mark.slow
async def test_what_cannot_be_done_is_refused_in_a_sentence(
    database: Database, subtests: pytest.Subtests
) -> None:
    async with talking(database) as (_, client, model):
        for changes, says in CANNOT_BE_DONE:
            asked = {"model": model, "messages": HELLO} | changes
            with subtests.test(says), pytest.raises(openai.BadRequestError, match=says):
                await client.chat.completions.create(**asked)  # type: ignore[call-overload]


async def test_errors_are_openais_with_our_sentences(database: Database) -> None:
    async with talking(database, Script((), fault="died")) as (_, client, model):
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model=model, messages=HELLO)
        assert (failed.value.code, failed.value.type) == ("model_unavailable", "server_error")
        assert failed.value.response.headers["retry-after"]
        with pytest.raises(openai.AuthenticationError) as stranger:
            await client.with_options(api_key="wrong").models.list()
        assert stranger.value.code == "invalid_api_key"
        assert stranger.value.type == "invalid_request_error"
