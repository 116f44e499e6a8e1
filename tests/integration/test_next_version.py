"""A process of this version meets rows that the next version wrote; on both databases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from pyarrow import BufferReader
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.recipes import Recipe
from guanaco.submissions import Stage, Status
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.tables import StageRunRow
from tests.fixtures.newer_version import EXTRA, extend, plain, rewrite, stored
from tests.fixtures.reconciling import reconciler_of
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import send, signed_in
from tests.fixtures.world import World

ID = "acme-tiny_v1"
OTHER = "acme-tiny_v2"
SPRING = {"name": "Spring", "starts_at": "2000-01-01T00:00:00Z"}


class Rolling(World):
    async def begin(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        """An admin and a backend, and a submission that takes conversations."""
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        return await self.http(Role.ADMIN), await self.http(Role.BACKEND, "app")

    async def forget(self) -> None:
        """Drop what this process keeps of submissions and conversations, as a restart does."""
        self.submissions.catalog._serving = {}
        await self.routing.refresh()
        async with self.database.read() as session:
            for conversation_id in await session.scalars(select(ConversationRow.id)):
                self.histories.forget(conversation_id)


@pytest.fixture
def world(database: Database) -> Rolling:
    return Rolling(database)


async def talk(backend: httpx.AsyncClient, conversation: str, content: str = "Hello") -> Any:
    answer = await backend.post(
        f"/conversations/{conversation}/messages", json={"content": content}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_conversation_goes_on_with_fields_of_the_next_version(world: Rolling) -> None:
    _, backend = await world.begin()
    conversation = await world.open(backend)
    await talk(backend, conversation)
    await extend(world.database, "submissions", "params", id=ID)
    await extend(world.database, "submissions", "formatter", id=ID)
    bot = await extend(world.database, "conversations", "bot", id=conversation)
    await world.forget()

    await talk(backend, conversation, "And now?")
    read = await backend.get(f"/conversations/{conversation}")
    assert [one["sender"] for one in read.json()["messages"]] == ["user", "bot"] * 2
    assert await stored(world.database, "conversations", "bot", id=conversation) == bot
    assert await stored(world.database, "submissions", "params", id=ID) | EXTRA == await stored(
        world.database, "submissions", "params", id=ID
    )


async def test_message_of_an_unknown_sender_is_shown_but_not_prompted(
    world: Rolling,
) -> None:
    _, backend = await world.begin()
    conversation = await world.open(backend)
    await talk(backend, conversation, "Hello")
    await talk(backend, conversation, "A storm is coming")
    key = {"conversation_id": conversation, "content": "A storm is coming"}
    await rewrite(world.database, "messages", key, sender="narrator")
    await world.forget()

    await talk(backend, conversation, "What now?")
    prompt = world.model_server.generations[-1].prompt
    assert "What now?" in prompt
    assert "storm" not in prompt
    read = await backend.get(f"/conversations/{conversation}")
    assert "narrator" in [one["sender"] for one in read.json()["messages"]]


@pytest.mark.slow
async def test_an_unknown_status_is_not_routed_to_and_is_shown(world: Rolling) -> None:
    admin, backend = await world.begin()
    await rewrite(world.database, "submissions", {"id": ID}, status="hibernating")
    await world.forget()

    refused = await backend.post(
        "/conversations", json={"user_id": "u", "bot": {"name": "Luna"}, "consent": True}
    )
    assert (refused.status_code, refused.json()["error"]) == (503, "no_model_available")
    shown = await admin.get(f"/submissions/{ID}")
    assert (shown.status_code, shown.json()["status"]) == (200, "hibernating")
    assert (await admin.get("/submissions")).json()[0]["status"] == "hibernating"
    assert (await admin.get("/leaderboard")).json()["rows"] == []
    assert (await world.submissions.catalog.count_by_status())["hibernating"] == 1
    moved = await admin.post(f"/submissions/{ID}/deactivate")
    assert (moved.status_code, moved.json()["error"]) == (409, "illegal_transition")


async def test_a_prompt_of_an_unknown_kind_takes_no_new_conversations(world: Rolling) -> None:
    admin, backend = await world.begin()
    old = await world.open(backend)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), OTHER)
    tree = {"kind": "tree", "root": {"says": "{message}"}}
    await rewrite(world.database, "submissions", {"id": ID}, formatter=tree)
    await world.forget()

    new = [await world.open(backend, f"user-{number}") for number in range(4)]
    async with world.database.read() as session:
        given = await session.scalars(
            select(ConversationRow.submission_id).where(ConversationRow.id.in_(new))
        )
    assert set(given) == {OTHER}
    refused = await backend.post(f"/conversations/{old}/messages", json={"content": "Hello"})
    assert (refused.status_code, refused.json()["error"]) == (503, "prompt_failed")
    assert (await admin.get(f"/submissions/{ID}")).json()["formatter"] == tree


async def test_an_unknown_assignment_rule_chooses_uniformly_and_records_nothing(
    world: Rolling,
) -> None:
    admin, backend = await world.begin()
    rules = {"assignment": {"seed": 7}, **SPRING}
    assert (await admin.put("/competitions/open", json=rules)).status_code == 200
    wanted = await stored(world.database, "competitions", "rules", id="open")
    wanted["assignment"] |= {"kind": "by_mood", "moods": ["calm"]}
    await rewrite(world.database, "competitions", {"id": "open"}, rules=wanted)
    await world.forget()

    conversation = await world.open(backend)
    replayed = (await admin.get(f"/conversations/{conversation}/assignment")).json()
    assert (replayed["submission_id"], replayed["decision"]) == (ID, None)
    shown = (await admin.get("/competitions/open")).json()
    assert shown["assignment"]["kind"] == "by_mood"


async def test_a_recorded_choice_of_an_unknown_rule_is_not_replayed(world: Rolling) -> None:
    admin, backend = await world.begin()
    await admin.put("/competitions/open", json={"assignment": {"seed": 7}, **SPRING})
    conversation = await world.open(backend)
    decision = await extend(world.database, "conversations", "decision", id=conversation)
    snapshot = await extend(
        world.database, "assignment_snapshots", "snapshot", digest=decision["snapshot"]
    )
    replayed = (await admin.get(f"/conversations/{conversation}/assignment")).json()
    assert replayed["is_same"] is True
    snapshot["rule"]["kind"] = "by_mood"
    key = {"digest": decision["snapshot"]}
    await rewrite(world.database, "assignment_snapshots", key, snapshot=snapshot)
    replayed = (await admin.get(f"/conversations/{conversation}/assignment")).json()
    assert (replayed["is_same"], replayed["decision"]["seed"]) == (None, 7)


async def test_a_changed_competition_keeps_the_fields_of_the_next_version(world: Rolling) -> None:
    admin = await world.http(Role.ADMIN)
    await admin.put("/competitions/spring", json=SPRING)
    rules = await stored(world.database, "competitions", "rules", id="spring")
    rules |= {"prize": 100}
    rules["entry"] |= {"region": "eu"}
    await rewrite(world.database, "competitions", {"id": "spring"}, rules=rules)

    changed = await admin.put("/competitions/spring", json={**SPRING, "name": "Summer"})
    assert (changed.status_code, changed.json()["name"]) == (200, "Summer")
    kept = await stored(world.database, "competitions", "rules", id="spring")
    assert (kept["name"], kept["prize"], kept["entry"]["region"]) == ("Summer", 100, "eu")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ranking": "by_length"}, "ranking: Input should be 'thumbs_up'"),
        ({"prize": 100}, "prize: There is no such field"),
        ({"assignment": {"kind": "by_mood"}}, "assignment.kind: Input should be 'newest'"),
    ],
)
async def test_request_of_the_next_version_is_refused_in_one_sentence(
    world: Rolling, change: dict[str, Any], sentence: str
) -> None:
    admin = await world.http(Role.ADMIN)
    refused = await admin.put("/competitions/spring", json={**SPRING, **change})
    assert (refused.status_code, refused.json()["error"]) == (422, "invalid_input")
    assert sentence in refused.json()["detail"]


async def test_an_unknown_ranking_rule_is_neither_ranked_nor_frozen(world: Rolling) -> None:
    admin, _ = await world.begin()
    await admin.put("/competitions/spring", json=SPRING)
    rules = await stored(world.database, "competitions", "rules", id="spring")
    await rewrite(
        world.database, "competitions", {"id": "spring"}, rules={**rules, "ranking": "by_length"}
    )
    await world.count()

    board = await admin.get("/leaderboard", params={"competition": "spring"})
    assert (board.status_code, board.json()["ranking"]) == (200, "by_length")
    assert [row["rank"] for row in board.json()["rows"]] == [None]
    refused = await admin.post("/competitions/spring/freeze")
    assert (refused.status_code, refused.json()["error"]) == (409, "newer_version_needed")
    assert (await admin.get("/competitions/spring")).json()["frozen_at"] is None


async def test_an_experiment_that_is_not_understood_takes_nobody(world: Rolling) -> None:
    admin, backend = await world.begin()
    variants = [{"name": "as-it-is"}, {"name": "warm", "params": {"temperature": 0.5}}]
    await admin.post("/experiments", json={"name": "heat", "variants": variants})
    assert (await admin.post("/experiments/heat/start")).status_code == 200
    rules = await stored(world.database, "experiments", "rules", name="heat")
    rules["variants"][1]["formatter"] = {"kind": "tree"}
    await rewrite(world.database, "experiments", {"name": "heat"}, rules=rules)
    await world.running.refresh()

    conversation = await world.open(backend)
    assert await plain(world.database, "conversations", "variant", id=conversation) is None
    assert (await admin.get("/experiments/heat")).json()["state"] == "running"
    await rewrite(world.database, "experiments", {"name": "heat"}, state="paused")
    await world.running.refresh()
    shown = await admin.get("/experiments/heat")
    assert (shown.status_code, shown.json()["state"]) == (200, "paused")
    for verb in ("start", "stop"):
        refused = await admin.post(f"/experiments/heat/{verb}")
        assert (refused.status_code, refused.json()["error"]) == (409, "newer_version_needed")
    assert (await admin.get("/experiments/heat/results")).status_code == 200


async def test_stages_events_and_reports_of_the_next_version_are_shown(world: Rolling) -> None:
    admin, _ = await world.begin()
    now = world.clock.now()
    async with world.database.write() as session:
        session.add(StageRunRow(submission_id=ID, run=1, stage="check", attempts=1, started_at=now))
        await lifecycle.append_event(session, ID, "log", "Calibrated.", at=now)  # type: ignore[arg-type]
    await rewrite(
        world.database, "stage_runs", {"submission_id": ID}, stage="calibrate", outcome="skipped"
    )
    await rewrite(
        world.database,
        "submission_events",
        {"submission_id": ID},
        kind="note",
        stage="calibrate",
        level="notice",
    )
    failure = {
        "code": "moody",
        "detail": "It is moody.",
        "blame": "weather",
        "stage": "calibrate",
        **EXTRA,
    }
    await rewrite(world.database, "submissions", {"id": ID}, failure=failure, dtype="int4")

    shown = (await admin.get(f"/submissions/{ID}")).json()
    assert [(one["stage"], one["outcome"]) for one in shown["stages"]] == [("calibrate", "skipped")]
    assert (shown["dtype"], shown["failure"]["blame"]) == ("int4", "weather")
    events = await admin.get(f"/submissions/{ID}/events", params={"follow": "false"})
    assert "event: note" in events.text
    assert '"stage":"calibrate"' in events.text


async def test_unknown_queued_submission_is_left_to_newer_workers(
    world: Rolling,
) -> None:
    developer = await world.account(Role.DEVELOPER, "ada")
    for name in (ID, OTHER):
        await world.publish(developer, name, Status.QUEUED)
    await rewrite(world.database, "submissions", {"id": ID}, dtype="int4")
    unfinished = await world.journal.list_unfinished()
    assert [one.run.submission_id for one in unfinished] == [OTHER]


@pytest.mark.parametrize(
    "change",
    [{"phase": "migrating"}, {"quantization": "int4"}, {"recipe": {"kv_cache_dtype": "int4"}}],
)
async def test_a_deployment_that_is_not_understood_is_left_alone(
    world: Rolling, change: dict[str, Any]
) -> None:
    reconciler = reconciler_of(world, _never)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    recipe = Recipe(gpu_type="H200", gpu_count=1, max_model_len=1_096)
    deployment = Deployment(ID, 1, "a" * 64, 1_096, recipe=recipe)
    await world.deployments.wish(deployment)
    await world.deployments.servers.apply(deployment)
    await world.deployments.mark_ready(ID, "memory://1")
    if "recipe" in change:
        change = {"recipe": recipe.model_dump(mode="json") | change["recipe"] | EXTRA}
    await rewrite(world.database, "deployments", {"submission_id": ID}, **change)
    running = await world.cluster.list_deployments()
    await reconciler.reconcile()

    assert await world.cluster.list_deployments() == running == [deployment_name(ID)]
    assert await plain(world.database, "deployments", "phase", submission_id=ID) in (
        "ready",
        "migrating",
    )
    assert world.deployments.replicas(ID) == ("memory://1",)


async def _never(submission_id: str, lines: Sequence[str]) -> None:
    raise AssertionError(f"{submission_id} was given up")


async def test_a_key_of_an_unknown_role_opens_nothing(world: Rolling) -> None:
    key = await world.key(Role.BACKEND, "app")
    await rewrite(world.database, "accounts", {"name": "app"}, role="auditor")
    http = world.http_with({"Authorization": f"Bearer {key}"})
    refused = await http.post("/conversations", json={"user_id": "u", "bot": {"name": "L"}})
    assert refused.status_code == 403


async def test_deliveries_of_the_next_version_are_listed(world: Rolling) -> None:
    http = await world.http(Role.DEVELOPER, "ada")
    assert (await http.put("/webhook", json={"url": "http://127.0.0.1:8999/hook"})).is_success
    assert (await http.post("/webhook/test")).is_success
    await rewrite(
        world.database, "webhook_deliveries", {"event": "test"}, event="season", state="held"
    )
    found = (await http.get("/webhook")).json()["deliveries"]
    assert [(one["event"], one["state"], one["next_attempt_at"]) for one in found] == [
        ("season", "held", None)
    ]


async def test_feedback_of_the_next_version_is_read_and_exported(world: Rolling) -> None:
    admin, backend = await world.begin()
    conversation = await world.open(backend)
    await talk(backend, conversation)
    rated = await backend.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
    await world.copies.make()
    feedback_id = rated.json()["feedback_id"]
    key = {"feedback_id": feedback_id}
    document = json.loads(await plain(world.database, "feedback_copies", "document", **key))
    document |= EXTRA
    document["params"] |= EXTRA
    document["messages"][0] |= {"sender": "narrator", **EXTRA}
    await rewrite(world.database, "feedback_copies", key, document=json.dumps(document))

    page = await admin.get(f"/submissions/{ID}/feedback")
    assert page.status_code == 200, page.text
    assert page.json()["items"][0]["messages"][0]["sender"] == "narrator"
    assert (await admin.get(f"/feedback/{feedback_id}")).status_code == 200
    for form in ("jsonl", "csv", "parquet"):
        file = await admin.get(f"/submissions/{ID}/feedback/export", params={"format": form})
        assert file.status_code == 200, file.text
        assert b"narrator" in (file.content if form != "parquet" else _rows(file.content))


def _rows(parquet: bytes) -> bytes:
    return json.dumps(pq.read_table(BufferReader(parquet)).to_pylist(), default=str).encode()


async def test_pages_show_words_of_the_next_version_and_keep_them(database: Database) -> None:
    world = WebWorld(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    root = await signed_in(world, Role.ADMIN, "root")
    fields = {"name": "Spring", "starts_at": "2026-01-01T00:00"}
    await send(root, "/admin/competitions", {**fields, "id": "spring"})
    rules = await stored(database, "competitions", "rules", id="spring")
    rules |= {"ranking": "by_length", "prize": 100}
    rules["assignment"] |= {"kind": "by_mood"}
    await rewrite(database, "competitions", {"id": "spring"}, rules=rules)
    await rewrite(database, "submissions", {"id": ID}, status="hibernating", dtype="int4")
    async with database.write() as session:
        now = world.clock.now()
        session.add(
            StageRunRow(submission_id=ID, run=1, stage=Stage.CHECK, attempts=1, started_at=now)
        )
    await rewrite(
        database, "stage_runs", {"submission_id": ID}, stage="calibrate", outcome="skipped"
    )

    shown = await root.get(f"/submissions/{ID}")
    assert shown.status_code == 200
    for word in ("hibernating", "calibrate", "A stage of a newer version of Guanaco"):
        assert word in shown.text
    form = await root.get("/admin/competitions/spring")
    assert '<option value="by_length" selected>' in form.text
    unchanged = {**fields, "ranking": "by_length", "assignment": "by_mood", "name": "Summer"}
    assert (await send(root, "/admin/competitions/spring", unchanged)).status_code == 303
    kept = await stored(database, "competitions", "rules", id="spring")
    assert (kept["name"], kept["ranking"], kept["prize"]) == ("Summer", "by_length", 100)
    assert kept["assignment"]["kind"] == "by_mood"
    invented = {**unchanged, "ranking": "by_weight"}
    assert (await send(root, "/admin/competitions/spring", invented)).status_code == 422
    for path in ("/", "/?competition=spring", "/submissions", "/admin", "/admin/competitions"):
        assert (await root.get(path)).status_code == 200, path
