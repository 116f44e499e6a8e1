"""The auditor of `make bench-faults` finds what was lost, doubled or orphaned: each is planted here, and found."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

from benchmarks.faults.auditor import Finding, audit
from benchmarks.faults.ledger import Ledger, LocalConversation, ToldSubmission, ToldTurn
from benchmarks.faults.orphans import orphaned_engines, orphaned_objects, orphaned_processes
from benchmarks.faults.pods import NAME, orphaned_pods
from guanaco.accounts import Role
from guanaco_server.artifacts.stores.s3_client import Bucket
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.formats.manifest import MANIFEST_NAME
from tests.fixtures.s3 import S3Server
from tests.fixtures.talking import talking

SUBMISSION = "acme-tiny_v1"
ARTIFACT = "ab" * 32
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


@pytest.mark.both_databases
async def test_each_kind_of_damage_is_found_and_nothing_else(database: Database) -> None:
    ledger = await told(database)
    engine = engine_of(database)
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
                artifact_key=ARTIFACT,
                max_model_tokens=1_024,
                phase=Phase.READY,
                updated_at=world.clock.now(),
            )
        )
        await session.execute(text("UPDATE submissions SET idempotency_key = 'key', run = 2"))
    return Ledger(
        [LocalConversation("user-1", conversation, [one, two], (True, "Good"))],
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


async def test_a_failure_with_an_incident_number_is_found(database: Database) -> None:
    ledger = await told(database)
    event = (
        "INSERT INTO submission_events (submission_id, seq, at, kind, level, message, data)"
        " SELECT id, 900, created_at, 'status', 'error', :said, '{}' FROM submissions"
    )
    with engine_of(database).connect() as tables:
        tables.execute(text(event), {"said": "Something went wrong (incident 12ab). Trying again"})
        assert "unforeseen failures" not in kinds(tables, ledger)
        tables.rollback()
        tables.execute(text(event), {"said": "Something went wrong (incident 12ab)."})
        assert "unforeseen failures" in kinds(tables, ledger)


async def test_orphaned_model_servers_and_processes_are_found(database: Database) -> None:
    await told(database)
    engine = engine_of(database)
    with standing_in(SUBMISSION) as first:
        assert orphaned_engines([psutil.Process(first.pid)], engine) == []
        with standing_in(SUBMISSION) as second, standing_in("acme-gone_v1") as stray:
            running = [psutil.Process(one.pid) for one in (first, second, stray)]
            found = orphaned_engines(running, engine)
            assert [one.sentence for one in found] == [
                f"1 model servers too many of {SUBMISSION}",
                "1 model servers too many of acme-gone_v1",
            ]
            left = " ".join(one.sentence for one in orphaned_processes(within_s=0))
            assert all(f"{one.pid} " in left for one in (first, second, stray))


async def test_orphaned_objects_are_found(database: Database, moto: S3Server) -> None:
    await told(database)
    engine, store = engine_of(database), moto.bucket()
    bucket = Bucket(store)
    assert kinds_of(orphaned_objects(store, engine)) == {"lost submissions"}
    bucket.put(f"models/artifacts/{ARTIFACT}/{MANIFEST_NAME}", b"{}")
    bucket.put(f"models/staging/{'cd' * 16}/probe", b"")  # the collector's, after a day
    with engine.begin() as tables:
        tables.execute(text("UPDATE submissions SET artifact_key = :key"), {"key": ARTIFACT})
    assert orphaned_objects(store, engine) == []
    bucket.put(f"models/artifacts/{'ef' * 32}/{MANIFEST_NAME}", b"{}")
    bucket.put("models/staging/Not-a-key/model.tensors", b"")
    assert [one.sentence for one in orphaned_objects(store, engine)] == [
        f"artifact {'ef' * 32}",
        "models/staging/Not-a-key/model.tensors",
    ]


async def test_orphaned_pods_are_found(database: Database) -> None:
    await told(database)
    engine = engine_of(database)
    name, gone = deployment_name(SUBMISSION), deployment_name("acme-gone_v1")
    objects = {
        ("deployments", "models", name): of_cluster(name),
        ("pods", "models", "one"): of_cluster(name, name),
        ("leases", "models", "guanaco"): {"metadata": {"uid": "lease"}},
    }
    assert orphaned_pods(objects, engine) == []
    objects |= {
        ("pods", "models", "two"): of_cluster(name, name),
        ("pods", "models", "three"): of_cluster(gone, gone),
        ("jobs", "models", "s-1"): of_cluster("s-1"),
    }
    assert {one.sentence for one in orphaned_pods(objects, engine)} == {
        f"2 pods of {name}",
        f"pods three of {gone!r}",
        "pod three without an owner",
        "jobs s-1 of 's-1'",
    }
    with engine.begin() as tables:  # a redeploy's server is named after its run
        tables.execute(text("UPDATE deployments SET server = :key"), {"key": f"{SUBMISSION}@2"})
    newer = deployment_name(f"{SUBMISSION}@2")
    assert orphaned_pods({("deployments", "models", newer): of_cluster(newer)}, engine) == []


def of_cluster(name: str, owner: str = "") -> dict[str, Any]:
    """An object whose uid is its name, and a pod's its owner's and "-pod"."""
    owners = [{"uid": owner}] if owner else []
    uid = f"{owner}-pod" if owner else name
    return {"metadata": {"uid": uid, "annotations": {NAME: name}, "ownerReferences": owners}}


@contextmanager
def standing_in(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a model server's command line."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "--name", name]
    process = subprocess.Popen(command)
    try:
        while name not in psutil.Process(process.pid).cmdline():  # until it has become that program
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


def kinds_of(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


def engine_of(database: Database) -> Engine:
    url = database.engine.url
    driver = url.drivername.replace("+aiosqlite", "")
    return create_engine(url.set(drivername=driver), poolclass=NullPool)
