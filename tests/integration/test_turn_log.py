"""The turn log when its database dies, or cannot hold a turn: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.accounts.tables import AccountRow
from guanaco_server.chat.gateway.turns.postgresql_turns import PostgresqlTurns
from guanaco_server.chat.gateway.turns.sqlite_turns import SqliteTurns
from guanaco_server.chat.gateway.turns.turn_log import EndedTurn, NewMessage, NewReply, TurnLog
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.postgres import MissingPostgresError, PostgresServer, running_server
from tests.fixtures.world import BOT

pytestmark = [pytest.mark.both_databases, pytest.mark.slow]

CONVERSATIONS = 12


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """One that may be killed, and that writes to the disk what it says it wrote."""
    try:
        with running_server(fsync="on", synchronous_commit="on", full_page_writes="on") as server:
            yield server
    except MissingPostgresError as error:
        pytest.fail(str(error), pytrace=False)


async def prepared(database: Database) -> None:
    await upgrade(database)
    now = datetime.now(UTC)
    async with database.write() as session:
        session.add(AccountRow(id="a", name="app", role=Role.BACKEND, created_at=now))
        await session.flush()
        session.add(
            SubmissionRow(
                id="s",
                account_id="a",
                developer="ada",
                repo="acme/tiny",
                name="tiny",
                status=Status.DEPLOYED,
                params=GenerationParams(),
                formatter=PromptFormatter(),
                request_hash="",
                created_at=now,
                updated_at=now,
            )
        )
        await session.flush()
        for number in range(CONVERSATIONS):
            session.add(
                ConversationRow(
                    id=f"conv_{number}",
                    account_id="a",
                    submission_id="s",
                    user_id="u",
                    user_name="Sam",
                    bot=BOT,
                    created_at=now,
                    message_count=0,
                )
            )


@pytest.mark.postgres
async def test_no_acknowledged_turn_is_lost_when_the_database_is_killed(
    own_postgres: PostgresServer,
) -> None:
    database = Database(own_postgres.url(own_postgres.create()))
    await prepared(database)
    log = TurnLog(PostgresqlTurns(database), SystemClock(), patience_s=60, longest_s=120)
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def talk(conversation_id: str) -> None:
        number = 0
        while not stop.is_set():
            try:
                lease = await log.claim(conversation_id)
            except Exception:  # noqa: BLE001 - the database is down: said again
                await asyncio.sleep(0.05)
                continue
            assert lease is not None
            number += 1
            name, now = f"{conversation_id}-{number}", datetime.now(UTC)
            reply = NewReply(f"{name}-bot", "Hi", now, "stop", 1, 1, 1.0, 2.0)
            await log.end(EndedTurn(lease, NewMessage(f"{name}-user", "Hello", now), reply))
            acknowledged.append(name)

    talks = [asyncio.create_task(talk(f"conv_{number}")) for number in range(CONVERSATIONS)]
    for _ in range(2):
        seen = len(acknowledged)
        while len(acknowledged) < seen + 100:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own_postgres.kill_and_restart)
    seen = len(acknowledged)
    while len(acknowledged) < seen + 100:
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*talks)

    async with database.read() as session:
        stored = set(await session.scalars(select(MessageRow.id)))
        counts = dict((await session.execute(select(ConversationRow.id, ConversationRow.message_count))).all())  # fmt: skip
        held = await session.scalar(
            select(func.count()).where(ConversationRow.turn_token.is_not(None))
        )
        bots = await session.scalar(select(func.count()).where(MessageRow.sender == Sender.BOT))
    assert {f"{name}-{side}" for name in acknowledged for side in ("user", "bot")} <= stored
    assert sum(counts.values()) == len(stored) == 2 * (bots or 0)
    assert held == 0
    await log.close()
    await database.close()


@pytest.mark.parametrize("what", ["a number", "a text"])
async def test_turn_that_cannot_be_stored_fails_alone_at_once(
    database: Database, what: str
) -> None:
    await prepared(database)
    is_postgresql = database.engine.dialect.name == "postgresql"
    statements = PostgresqlTurns(database) if is_postgresql else SqliteTurns(database)
    log = TurnLog(statements, SystemClock(), patience_s=3_600, longest_s=7_200)
    now = datetime.now(UTC)

    async def turn(number: int) -> EndedTurn:
        lease = await log.claim(f"conv_{number}")
        assert lease is not None
        reply = NewReply(f"bot-{number}", "Hi", now, "stop", 1, 1, 1.0, 2.0)
        return EndedTurn(lease, NewMessage(f"user-{number}", "Hello", now), reply)

    good, bad, *others = await asyncio.gather(*(turn(number) for number in range(4)))
    assert bad.reply is not None
    poison = {
        "a number": replace(bad.reply, prompt_tokens=2**40 if is_postgresql else 2**70),
        "a text": replace(bad.reply, content="half a character: \ud800"),
    }
    async with asyncio.timeout(60):  # nothing is tried again
        outcomes = await asyncio.gather(
            *(log.end(turn) for turn in (good, replace(bad, reply=poison[what]), *others)),
            return_exceptions=True,
        )
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True, False, False]
    await log.end(replace(bad, reply=None))
    async with database.read() as session:
        stored = set(await session.scalars(select(MessageRow.id)))
        held = await session.scalar(
            select(func.count()).where(ConversationRow.turn_token.is_not(None))
        )
    assert stored == {"user-1"} | {f"{side}-{n}" for n in (0, 2, 3) for side in ("user", "bot")}
    assert held == 0
    await log.close()
