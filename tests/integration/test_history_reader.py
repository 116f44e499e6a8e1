"""Histories as they are read, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from guanaco.chat import Sender
from guanaco.errors import ConversationNotFound, DatabaseUnavailable
from guanaco_server.chat.conversations.history import (
    AT_ONCE,
    History,
    HistoryReader,
    history_reader,
)
from guanaco_server.chat.tables import MessageRow
from guanaco_server.database.database import Database
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.world import BOT
from tests.integration.test_turn_log import CONVERSATIONS, own_postgres, prepared

pytestmark = pytest.mark.both_databases

__all__ = ["own_postgres"]
STRANGE = 'She said "no" \\ then\n\ttook {1,2} - 🦙'


async def store(database: Database, conversation_id: str, *said: tuple[Sender, str, bool]) -> None:
    """The last first, as a table may hold them."""
    async with database.write() as session:
        for position, (sender, content, is_deleted) in reversed([*enumerate(said, start=1)]):
            session.add(
                MessageRow(
                    id=f"{conversation_id}-{position}",
                    conversation_id=conversation_id,
                    position=position,
                    sender=sender,
                    content=content,
                    created_at=datetime.now(UTC),
                    is_deleted=is_deleted,
                )
            )
            await session.flush()


async def read_on(reader: HistoryReader, conversation_id: str) -> None:
    while True:
        await reader.read(conversation_id)


def said(history: History) -> list[tuple[Sender, str]]:
    return [(turn.sender, turn.content) for turn in history.turns]


async def test_a_history_is_what_was_kept_in_its_order(database: Database) -> None:
    await prepared(database)
    kept = [(Sender.USER if n % 2 == 0 else Sender.BOT, f"{n} {STRANGE}") for n in range(12)]
    replaced = (Sender.BOT, "replaced", True)
    await store(database, "conv_0", *((*one, False) for one in kept[:-1]), replaced, (*kept[-1], False))  # fmt: skip
    history = await history_reader(database).read("conv_0")
    assert said(history) == kept
    assert history.tail == ["conv_0-13"]
    assert (history.account_id, history.submission_id, history.user_name) == ("a", "s", "Sam")
    assert (history.bot, history.message_count, history.variant) == (BOT, 0, None)


async def test_the_tail_is_what_came_after_the_last_question(database: Database) -> None:
    await prepared(database)
    await store(database, "conv_0", (Sender.BOT, "Ahoy", False))
    await store(database, "conv_1", (Sender.BOT, "Ahoy", False), (Sender.USER, "Hi", False))
    reader = history_reader(database)
    assert (await reader.read("conv_0")).tail == ["conv_0-1"]
    assert (await reader.read("conv_1")).tail == []
    empty = await reader.read("conv_2")
    assert (empty.turns, empty.tail) == ([], [])


async def test_concurrent_readers_get_their_own_and_share_the_bot(database: Database) -> None:
    await prepared(database)
    names = [f"conv_{number % CONVERSATIONS}" for number in range(3 * AT_ONCE)]
    for name in set(names):
        await store(database, name, (Sender.USER, f"I am {name}", False))
    reader = history_reader(database)
    read = await asyncio.gather(*(reader.read(name) for name in names))
    assert [history.conversation_id for history in read] == names
    assert [said(history) for history in read] == [[(Sender.USER, f"I am {name}")] for name in names]  # fmt: skip
    assert len({id(history.bot) for history in read}) == 1
    assert len({id(history) for history in read}) == len(names)


@pytest.mark.parametrize("name", ["conv_missing", "", 'a"b', "conv_0\\", "conv_0\x00", "\ud800", "ü,{}"])  # fmt: skip
async def test_what_is_no_conversation_is_not_found_and_harms_nobody(
    database: Database, name: str
) -> None:
    await prepared(database)
    reader = history_reader(database)
    missing, found = await asyncio.gather(
        reader.read(name), reader.read("conv_0"), return_exceptions=True
    )
    assert isinstance(missing, ConversationNotFound)
    assert isinstance(found, History)


@pytest.mark.postgres
async def test_missing_database_is_unavailable_until_it_is_back(
    own_postgres: PostgresServer,
) -> None:
    database = Database(own_postgres.url(own_postgres.create()))
    await prepared(database)
    reader = history_reader(database)
    before = await reader.read("conv_0")
    own_postgres.kill()
    with pytest.raises(DatabaseUnavailable):
        await read_on(reader, "conv_0")
    await asyncio.to_thread(own_postgres.restart)
    assert await reader.read("conv_0") == before
    await database.close()
