"""Messages, ratings and copies in partitions by competition and time, and the retention that drops them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.competitions import OPEN, CompetitionRequest
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.partitions.ids import CONVERSATION, RATING, bounds, new_rating_id
from guanaco_server.retention.service import width_for
from tests.fixtures.world import BOT, World
from tests.integration.test_migrations import (
    A_RATED_CONVERSATION,
    A_SUBMISSION,
    AN_ACCOUNT,
    TWO_BACKENDS,
    scripts_before,
)

pytestmark = pytest.mark.both_databases

DAY_S = 86_400
ITS_MESSAGES = text(
    "INSERT INTO messages (id, conversation_id, position, sender, content, created_at, is_deleted)"
    " VALUES ('m1', :id, 1, 'user', 'Hello', '2026-01-01 00:00:00+00', false),"
    " ('m2', :id, 2, 'bot', 'Ahoy', '2026-01-01 00:00:00+00', false)"
)
ITS_COPY = text(
    "INSERT INTO feedback_copies (feedback_id, submission_id, pseudonym, bot_name, thumbs_up, rated_at, length, words, document)"
    " VALUES (:id, 'm_v1', 'user_1', 'Luna', true, '2026-01-01 00:00:00+00', 2, '', '{}')"
    " ON CONFLICT (feedback_id) DO UPDATE SET words = excluded.words"
)
A_RATING_BEFORE = text(
    "INSERT INTO feedback (id, conversation_id, submission_id, user_id, account_id, competition, bot_name, thumbs_up, text,"
    " created_at, anonymized_by, is_counted) SELECT :id, id, submission_id, user_id, account_id, competition, 'Luna', true, '',"
    " created_at, 0, false FROM conversations WHERE id = :conversation ON CONFLICT (conversation_id) DO NOTHING"
)


class Kept(World):
    """A world with two competitions: in `autumn` conversations are kept for 8 days."""

    async def prepare(self) -> None:
        rules = CompetitionRequest(
            name="Autumn", starts_at=self.clock.now() - timedelta(days=1), retention_days=8
        )
        await self.competitions.put("autumn", rules)
        await self.publish(await self.account(Role.DEVELOPER, "ada"))
        self.app_http = await self.http(Role.BACKEND)
        self.admin_http = await self.http(Role.ADMIN)
        await self.keep()
        await self.routing.refresh()

    async def keep(self) -> int:
        return await self.platform.rooms.retention.service.keep()

    async def rated(self, user: str, competition: str = "autumn") -> str:
        """A conversation with a turn and a rating, counted and copied."""
        body = {
            "user_id": user,
            "bot": BOT.model_dump(),
            "consent": True,
            "competition": competition,
        }
        answer = await self.app_http.post("/conversations", json=body)
        assert answer.status_code == 201, answer.text
        conversation: str = answer.json()["conversation_id"]
        await self.greet(self.app_http, conversation)
        body = {"thumbs_up": True, "text": "kind"}
        await self.app_http.post(f"/conversations/{conversation}/feedback", json=body)
        await self.copies.make()
        await self.count()
        return conversation

    async def read(self, conversation: str) -> httpx.Response:
        return await self.app_http.get(f"/conversations/{conversation}")

    async def left(self) -> dict[str, int]:
        """The rows of each table."""
        tables = ("conversations", "messages", "feedback", "feedback_copies")
        return {
            table: (await rows(self.database, f"SELECT count(*) FROM {table}"))[0][0]
            for table in tables
        }


@pytest.fixture
async def world(database: Database) -> Kept:
    world = Kept(database)
    await world.prepare()
    return world


def is_postgresql(world: World) -> bool:
    return world.database.engine.dialect.name == "postgresql"


async def rows(database: Database, query: str, **values: Any) -> list[Any]:
    async with database.read() as session:
        return list((await session.execute(text(query), values)).all())


async def partitions(database: Database) -> set[str]:
    found = await rows(
        database, "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"
    )
    return {name for (name,) in found}


async def test_a_conversation_is_kept_as_long_as_its_competition_says(world: Kept) -> None:
    old, other = await world.rated("user-1"), await world.rated("user-2", OPEN)
    world.clock.advance(5 * DAY_S)
    await world.keep()
    young = await world.rated("user-3")
    assert await world.keep() == 0
    world.clock.advance(5 * DAY_S)
    assert await world.keep() == 1
    assert (await world.read(old)).status_code == 404
    for conversation in (young, other):
        assert len((await world.read(conversation)).json()["messages"]) == 2
    assert await world.left() == {
        "conversations": 2,
        "messages": 4,
        "feedback": 2,
        "feedback_copies": 2,
    }
    await world.count()
    board = (await world.admin_http.get("/leaderboard", params={"competition": "autumn"})).json()
    assert [row["feedback_count"] for row in board["rows"]] == [1]
    assert await world.keep() == 0


async def test_on_postgresql_what_is_removed_is_dropped(world: Kept) -> None:
    conversation = await world.rated("user-1")
    if not is_postgresql(world):
        assert await rows(world.database, "SELECT * FROM periods") == []
        return
    ((number,),) = await rows(
        world.database, "SELECT number FROM periods WHERE competition = 'autumn' ORDER BY 1 LIMIT 1"
    )
    first, end = bounds(CONVERSATION, number)
    assert first <= conversation < end
    stored = "SELECT tableoid::regclass::text FROM messages UNION SELECT tableoid::regclass::text FROM feedback UNION SELECT tableoid::regclass::text FROM feedback_copies"
    own = {f"messages_p{number}", f"feedback_p{number}", f"feedback_copies_p{number}"}
    assert {name for (name,) in await rows(world.database, stored)} == own
    world.clock.advance(9 * DAY_S + 1)
    await world.keep()
    assert own & await partitions(world.database) == set()
    ((dropped_at,),) = await rows(
        world.database, "SELECT dropped_at FROM periods WHERE number = :n", n=number
    )
    assert dropped_at is not None


async def test_a_removal_that_was_interrupted_is_finished(world: Kept) -> None:
    if not is_postgresql(world):
        return
    await world.rated("user-1")
    world.clock.advance(9 * DAY_S + 1)
    periods = world.platform.rooms.retention.periods
    (period,) = await periods.ended("autumn", world.clock.now() - timedelta(days=8))
    await periods.drop(period)
    assert await world.left() == {
        "conversations": 1,
        "messages": 0,
        "feedback": 0,
        "feedback_copies": 0,
    }
    assert await world.keep() == 1
    assert (await world.left())["conversations"] == 0


async def test_only_a_conversations_own_partition_is_read(world: Kept) -> None:
    if not is_postgresql(world):
        return
    conversation = await world.rated("user-1")
    queries = (
        f"SELECT * FROM messages WHERE conversation_id = '{conversation}'",
        f"SELECT * FROM feedback WHERE conversation_id = '{conversation}'",
    )
    for query in queries:
        plan = "\n".join(line for (line,) in await rows(world.database, f"EXPLAIN {query}"))
        assert "_p" in plan
        assert "_before" not in plan
        assert "Append" not in plan


async def test_what_has_no_period_is_kept_as_long(world: Kept) -> None:
    """Conversations from before partitions, and of a process that knows no periods."""
    async with world.database.write() as session:
        await session.execute(text("UPDATE periods SET dropped_at = ends_at"))
    world.restart()
    conversation = await world.rated("user-1")
    assert not conversation.startswith("conv_00000000")
    world.clock.advance(7 * DAY_S)
    assert await world.keep() == 0
    world.clock.advance(DAY_S + 1)
    assert await world.keep() == 1
    assert set((await world.left()).values()) == {0}


async def test_a_shorter_retention_holds_for_what_is_there(world: Kept) -> None:
    await world.rated("user-1", OPEN)
    rules = CompetitionRequest(
        name="Open", starts_at=world.clock.now() - timedelta(days=1), retention_days=2
    )
    await world.competitions.put(OPEN, rules)
    await world.keep()
    world.clock.advance(3 * DAY_S + 1)
    assert await world.keep() == 1
    assert set((await world.left()).values()) == {0}


async def test_ratings_of_the_version_before_go_with_their_copies(world: Kept) -> None:
    """It gives ratings ids without a period, so that their copies lie elsewhere."""
    body = {"user_id": "u", "bot": BOT.model_dump(), "consent": True, "competition": "autumn"}
    conversation = (await world.app_http.post("/conversations", json=body)).json()[
        "conversation_id"
    ]
    await world.greet(world.app_http, conversation)
    for _ in range(2):
        async with world.database.write() as session:
            await session.execute(
                A_RATING_BEFORE, {"id": "fb_" + "9" * 32, "conversation": conversation}
            )
    assert await world.copies.make() == 1
    assert (await world.left())["feedback_copies"] == 1
    world.clock.advance(10 * DAY_S)
    await world.keep()
    assert set((await world.left()).values()) == {0}


async def test_a_filled_database_of_the_version_before_is_upgraded(
    empty_database_url: str, tmp_path: Path
) -> None:
    database = Database(empty_database_url)
    await upgrade(database, scripts_before("partitions", tmp_path))
    values = {"id": "c1", "account": "b", "user": "17", "submission": "m_v1", "up": True}
    async with database.write() as session:
        await session.execute(AN_ACCOUNT)
        await session.execute(TWO_BACKENDS)
        await session.execute(A_SUBMISSION, {"id": "m_v1"})
        conversation, rating, _ = A_RATED_CONVERSATION
        await session.execute(conversation, values)
        await session.execute(rating, values)
        await session.execute(ITS_MESSAGES, values)
        await session.execute(ITS_COPY, {"id": "fb_c1"})

    await upgrade(database)

    world = World(database)
    await world.platform.rooms.retention.service.keep()
    assert await rows(database, "SELECT id, position FROM messages ORDER BY 2") == [
        ("m1", 1),
        ("m2", 2),
    ]
    async with database.write() as session:
        await session.execute(ITS_COPY, {"id": "fb_c1"})
    assert await rows(database, "SELECT feedback_id FROM feedback_copies") == [("fb_c1",)]
    ((number,),) = await rows(database, "SELECT number FROM feedback_copies")
    async with database.write() as session:
        await session.execute(text("DELETE FROM feedback_copies"))
        await session.execute(ITS_COPY, {"id": "fb_c1"})
    ((next_number,),) = await rows(database, "SELECT number FROM feedback_copies")
    assert next_number > number, "no number is given twice"
    await database.close()


def test_a_ratings_id_names_the_period_of_its_conversation() -> None:
    first, end = bounds(RATING, 42)
    assert first <= new_rating_id(bounds(CONVERSATION, 42)[0] + "9f86d081884c7d65") < end
    for foreign in ("conv_9f86d0814c7d4659ab1282f0a2feaa08", "c1", "conv_00000000zz"):
        assert not new_rating_id(foreign).startswith("fb_00000000")


@pytest.mark.parametrize(("retention", "days"), [(None, 30), (1, 1), (8, 1), (90, 11), (365, 30)])
def test_a_period_is_an_eighth_of_the_retention(retention: int | None, days: int) -> None:
    assert width_for(retention) == timedelta(days=days)
