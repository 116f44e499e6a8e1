"""The auditor of `make bench-faults` finds what was lost, doubled or orphaned: each is planted here, and found."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from sqlalchemy import Connection, create_engine, text

from benchmarks.faults.auditor import audit
from benchmarks.faults.ledger import Ledger, Talk, ToldSubmission, ToldTurn
from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import DeploymentRow, Phase
from tests.fixtures.talking import talking

pytestmark = pytest.mark.both_databases

SUBMISSION = "acme-tiny_v1"
COPIED = "submission_id, user_id, account_id, competition, bot_name, thumbs_up, text, created_at, anonymized_by, is_counted, revision"
SECOND_TALK = (
    "INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at, message_count, measured_count)"
    " SELECT 'conv_2', account_id, submission_id, user_id, user_name, competition, bot, created_at, 0, 0 FROM conversations"
)
PLANTED: dict[str, tuple[str, ...]] = {
    "lost submissions": ("UPDATE submissions SET run = 1",),
    "lost turns": ("UPDATE messages SET content = 'Else' WHERE content = 'Two'",),
    "lost ratings": ("UPDATE feedback SET text = 'Else'",),
    "doubled submissions": ("UPDATE submissions SET run = 3",),
    "doubled turns": ("UPDATE messages SET content = 'One' WHERE content = 'Two'",),
    "doubled ratings": (SECOND_TALK, f"INSERT INTO feedback (id, conversation_id, {COPIED}) SELECT 'fb_2', 'conv_2', {COPIED} FROM feedback"),
    "orphaned rows": ("UPDATE submissions SET status = 'deploying'",),
}  # fmt: skip


async def test_each_kind_of_damage_is_found_and_nothing_else(database: Database) -> None:
    ledger = await told(database)
    url = database.engine.url.set(
        drivername=database.engine.url.drivername.replace("+aiosqlite", "")
    )
    engine = create_engine(url)
    with engine.connect() as tables:
        assert audit(tables, ledger) == []
        for kind, statements in PLANTED.items():
            for statement in statements:
                tables.execute(text(statement))
            assert kind in kinds(tables, ledger), kind
            tables.rollback()
        assert audit(tables, ledger) == [], "all damage was taken back"
        for kind, wrong in wrongly_told(ledger).items():
            assert kind in kinds(tables, wrong), kind
    engine.dispose()


def kinds(tables: Connection, ledger: Ledger) -> set[str]:
    return {finding.kind for finding in audit(tables, ledger)}


async def told(database: Database) -> Ledger:
    """A submission that was redeployed once, and a conversation of two turns, the first with a second reply, and its rating."""
    world, http, conversation = await talking(database)
    path = f"/conversations/{conversation}"
    one = ToldTurn("One", [await reply(http, f"{path}/messages", content="One")])
    one.reply_ids.append(await reply(http, f"{path}/regenerate"))
    two = ToldTurn("Two", [await reply(http, f"{path}/messages", content="Two")])
    rated = await http.post(f"{path}/feedback", json={"thumbs_up": True, "text": "Good"})
    assert rated.status_code == 201, rated.text
    await world.count()
    developer = await world.http(Role.DEVELOPER, "ada")
    assert (await developer.get(f"/submissions/{SUBMISSION}/feedback")).is_success
    async with database.write() as session:
        session.add(
            DeploymentRow(
                submission_id=SUBMISSION,
                run=2,
                artifact_key="ab" * 32,
                max_model_tokens=1_024,
                phase=Phase.READY,
                updated_at=world.clock.now(),
            )
        )
        await session.execute(text("UPDATE submissions SET idempotency_key = 'key', run = 2"))
    return Ledger(
        [Talk("user-1", conversation, [one, two], (True, "Good"))],
        [ToldSubmission("key", "acme/tiny", SUBMISSION, runs=2)],
    )


async def reply(http: httpx.AsyncClient, path: str, **body: str) -> str:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    message_id: str = answer.json()["message_id"]
    return message_id


def wrongly_told(ledger: Ledger) -> dict[str, Ledger]:
    """Ledgers of clients who were told more, or less, than is stored."""
    (talk,), (submission,) = ledger.talks, ledger.submissions
    more = replace(talk, turns=[*talk.turns, ToldTurn("Three", ["msg_3"])])
    fewer = replace(talk, turns=[ToldTurn("One", talk.turns[0].reply_ids[:1]), talk.turns[1]])
    another = ToldSubmission("other", "acme/tiny", "acme-tiny_v2")
    return {
        "lost turns": replace(ledger, talks=[more]),
        "doubled turns": replace(ledger, talks=[fewer]),
        "lost submissions": replace(ledger, submissions=[submission, another]),
        "doubled submissions": replace(ledger, submissions=[]),
        "doubled ratings": replace(ledger, talks=[replace(talk, rating=None)]),
    }
