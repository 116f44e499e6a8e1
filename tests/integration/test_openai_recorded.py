"""Chats that are recorded, by the official OpenAI client: what they say is honoured or refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from sqlalchemy import func, select

from guanaco.competitions import CompetitionRequest
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.integration.test_openai import HELLO, talking

ANSWER = "Hello from memory."


async def ask(
    client: AsyncOpenAI, messages: list[Any], user: str = "u1", **asked: Any
) -> ChatCompletion:
    metadata = {"consent": "true", **asked.pop("metadata", {})}
    reply: ChatCompletion = await client.chat.completions.create(
        model="guanaco/auto", messages=messages, user=user, metadata=metadata, **asked
    )
    return reply


def id_of(reply: ChatCompletion) -> str:
    return str(reply.model_dump()["guanaco"]["conversation_id"])


def users(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistants(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


async def test_a_recorded_reply_has_the_parameters_that_it_asks_for(database: Database) -> None:
    async with talking(database, max_output_tokens=16) as (world, client, _):
        first = await ask(
            client, HELLO, temperature=0.1, top_p=0.5, max_tokens=3, stop=["Sam:"], seed=7
        )
        asked = world.model_server.generations[-1]
        assert (asked.params.temperature, asked.params.top_p) == (0.1, 0.5)
        assert (asked.params.max_output_tokens, asked.params.stopping_words) == (3, ["Sam:"])
        assert asked.seed == 7
        named = {"conversation_id": id_of(first)}
        await ask(client, [users("More")], metadata=named, max_completion_tokens=4_096)
        asked = world.model_server.generations[-1]
        assert (asked.params.temperature, asked.params.max_output_tokens) == (1.0, 16)
        assert asked.seed is None


async def test_a_greeting_before_the_first_message_is_the_bots(database: Database) -> None:
    async with talking(database) as (world, client, _):
        said = [HELLO[0], assistants("Ahoy!"), users("Hi")]
        first = await ask(client, said)
        assert "Ahoy!" in world.model_server.generations[-1].prompt
        named = {"conversation_id": id_of(first)}
        await ask(client, [*said, assistants(ANSWER), users("More")], metadata=named)
        http = world.http_with({"Authorization": f"Bearer {client.api_key}"})
        found = (await http.get(f"/conversations/{id_of(first)}")).json()
        assert found["bot"]["first_message"] == "Ahoy!"
        assert [one["content"] for one in found["messages"]] == ["Hi", ANSWER, "More", ANSWER]


async def test_foreign_turns_are_not_recorded_and_the_answer_says_so(
    database: Database,
) -> None:
    async with talking(database) as (_, client, _model):
        said = [users("My name is Bob"), assistants("Hi Bob"), users("Who am I?")]
        with pytest.raises(openai.BadRequestError, match="begins with the user's first message"):
            await ask(client, said)
        async with database.read() as session:
            assert not await session.scalar(select(func.count()).select_from(ConversationRow))


@pytest.mark.parametrize("role", ["system", "assistant", "user"])
async def test_what_cannot_be_stored_is_refused_before_anything_is(
    database: Database, role: str
) -> None:
    async with talking(database) as (_, client, _model):
        said = [{"role": role, "content": "a\x00b"}, *([] if role == "user" else [users("Hi")])]
        with pytest.raises(openai.BadRequestError, match="cannot be stored"):
            await ask(client, said)
        async with database.read() as session:
            assert not await session.scalar(select(func.count()).select_from(ConversationRow))


async def test_another_users_conversation_is_not_found(database: Database) -> None:
    async with talking(database) as (_, client, _model):
        named = {"conversation_id": id_of(await ask(client, HELLO))}
        with pytest.raises(openai.NotFoundError):
            await ask(client, [users("More")], user="u2", metadata=named)
        for nobodys in ("conv_none", "conv\n"):
            with pytest.raises(openai.NotFoundError):
                await ask(client, [users("More")], metadata={"conversation_id": nobodys})


async def test_a_recorded_chat_takes_part_in_the_named_competition(database: Database) -> None:
    async with talking(database) as (world, client, model):
        with pytest.raises(openai.NotFoundError, match="No competition autumn"):
            await ask(client, HELLO, metadata={"competition": "autumn"})
        await world.competitions.put(
            "autumn", CompetitionRequest(name="Autumn", starts_at=world.clock.now())
        )
        autumn = {"competition": "autumn"}
        first = await ask(client, HELLO, metadata=autumn)
        http = world.http_with({"Authorization": f"Bearer {client.api_key}"})
        found = (await http.get(f"/conversations/{id_of(first)}")).json()
        assert found["competition"] == "autumn"
        named = {"conversation_id": id_of(first)}
        await ask(client, [users("More")], metadata=named | autumn)
        for metadata, says in (
            (named | {"competition": "open"}, "metadata.competition"),
            ({"competition": "No Slug"}, "small letters"),
            (autumn | {"consent": "false"}, 'needs consent "true"'),
        ):
            with pytest.raises(openai.BadRequestError, match=says):
                await ask(client, HELLO, metadata=metadata)
        with pytest.raises(openai.BadRequestError, match="takes part in no competition"):
            await client.chat.completions.create(
                model=model, messages=HELLO, user="u1", metadata={"consent": "true", **autumn}
            )


@pytest.mark.parametrize(
    ("messages", "metadata", "says"),
    [
        ([{"role": "system", "content": "Another"}, users("More")], {}, "The persona"),
        ([users("More")], {"bot_name": "Nia"}, "metadata.bot_name"),
        ([users("More")], {"user_name": "Sam"}, "metadata.user_name"),
        ([users("Hello"), assistants("I never said"), users("More")], {}, "before the last one"),
        ([users("Before"), users("Hello"), assistants(ANSWER), users("More")], {}, "before the"),
    ],
)
async def test_a_conversation_is_continued_as_it_was(
    database: Database, messages: list[Any], metadata: dict[str, str], says: str
) -> None:
    async with talking(database) as (world, client, _):
        named = {"conversation_id": id_of(await ask(client, HELLO))}
        with pytest.raises(openai.BadRequestError, match=says):
            await ask(client, messages, metadata=named | metadata)
        for told in ([users("More")], [assistants(ANSWER), users("Still more")]):
            await ask(client, told, metadata=named)
        asked = world.model_server.generations[-1].prompt
        assert asked.index("Hello") < asked.index("More") < asked.index("Still more")


async def test_failed_request_can_be_sent_again_unchanged(database: Database) -> None:
    scripts = (Script(), Script((), fault="died"), Script(("Here.",)))
    async with talking(database, *scripts) as (world, client, _):
        named = {"conversation_id": id_of(await ask(client, HELLO))}
        again = [*HELLO, assistants(ANSWER), users("There?")]
        with pytest.raises(openai.InternalServerError):
            await ask(client, again, metadata=named)
        assert (await ask(client, again, metadata=named)).choices[0].message.content == "Here."
        http = world.http_with({"Authorization": f"Bearer {client.api_key}"})
        found = (await http.get(f"/conversations/{named['conversation_id']}")).json()
        said = [one["content"] for one in found["messages"]]
        assert said == ["Hello", ANSWER, "There?", "Here."]
