"""The readers of further rows, when the next version wrote them: fields and words that this version does not know."""

from __future__ import annotations

import json
import zlib
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.alerts import AlertMessageKind, AlertName, Severity
from guanaco.submissions import RedeployRequest
from guanaco.webhooks import DeliveryState
from guanaco_server.alerts.tables import AlertMessageRow, AlertRow
from guanaco_server.chat.tables import GatewayPlacesRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.versions import Arm
from guanaco_server.idempotency.service import KeyedRequest
from guanaco_server.submissions.pipeline.runner import Step
from tests.fixtures.newer_version import EXTRA, plain, rewrite
from tests.fixtures.pipeline import ID, RUN, tiny_files
from tests.fixtures.rating import rate
from tests.fixtures.rolling import RollingWorld
from tests.fixtures.talking import contents, talking
from tests.fixtures.world import World

SUMMARY = {"text": "They met at sea.", "until": 1, "by": "committee", **EXTRA}


async def test_memory_of_the_next_version_is_shown_and_used(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)), Script(("Yes",)))
    await world.greet(http, conversation)
    async with database.read() as session:
        rows = await session.scalars(select(MessageRow).order_by(MessageRow.position))
        asked = next(row.id for row in rows if row.sender == "user")
    await rewrite(database, "messages", {"id": asked}, summary=SUMMARY, recalled=[0], lore=[7])
    carried = {"from": "conv_old", "text": "They met before.", **EXTRA}
    key = {"id": conversation}
    await rewrite(database, "conversations", key, carried=carried, written=SUMMARY | {"until": 2})
    world.replies.forget([conversation])

    shown = (await http.get(f"/conversations/{conversation}/memory")).json()
    (summary,) = shown["summaries"]
    assert (summary["text"], summary["written_by"]) == ("They met at sea.", "committee")
    assert (shown["recalled"][0]["recalled"], shown["carried"]["text"]) == ([0], carried["text"])
    await world.greet(http, conversation)
    assert len(await contents(http, conversation)) == 4


async def test_a_persona_shortened_by_an_unknown_method_is_shown(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    http = await world.http(Role.BACKEND, "app")
    bot = {"name": "Luna", "memory": "She keeps the light. " * 400}
    body = {"user_id": "u", "consent": True, "bot": bot}
    opened = await http.post("/conversations", json=body)
    assert opened.status_code == 201, opened.text
    path = f"/conversations/{opened.json()['conversation_id']}/persona"
    assert (await http.get(path)).json()["method"] == "cut"
    await world.platform.rooms.chat.personas.finish()
    await rewrite(database, "persona_versions", {"method": "cut"}, method="dream")
    found = (await http.get(path)).json()
    assert found["method"] == "dream"
    assert {one["method"] for one in found["versions"]} == {"extract", "dream"}


async def test_repeated_request_gets_the_answer_the_next_version_kept(
    database: Database,
) -> None:
    service = World(database).platform.rooms.idempotency.service
    request = KeyedRequest("a", "key", b"content")
    head = json.dumps([201, [["content-type", "text/plain"]], {"region": "eu"}]).encode()
    text = zlib.compress(len(head).to_bytes(4, "big") + head + b"made")
    sealed = bytes(12) + service._cipher(request).encrypt(bytes(12), text, None)
    answer = service._open(request, sealed)
    assert answer is not None
    assert (answer.status, answer.body) == (201, b"made")


async def test_a_submission_of_the_next_version_is_shown(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    prompt = {"kind": "tree", "root": {"says": "{message}"}}
    key = {"id": ID}
    await rewrite(
        database,
        "submissions",
        key,
        card={"license": "mit", "summary": "Small.", **EXTRA},
        reward_formatter=prompt,
        recipe_override={"gpus": 2, "kv_cache_dtype": "fp2", **EXTRA},
    )
    for http in (await world.http(Role.DEVELOPER, "ada"), await world.http(Role.ADMIN)):
        found = await http.get(f"/submissions/{ID}")
        assert found.status_code == 200, found.text
        assert found.json()["reward_formatter"] == prompt
        recipe = await http.get(f"/submissions/{ID}/recipe")
        assert (recipe.status_code, recipe.json()["override"]["kv_cache_dtype"]) == (200, "fp2")
        assert (await http.get("/submissions")).status_code == 200


async def test_a_stored_prompt_of_an_unknown_kind_is_shown(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER, "ada")
    pushed = await http.post(
        "/prompts", json={"name": "support", "prompt": {"response_template": "{bot_name}:"}}
    )
    assert pushed.is_success, pushed.text
    prompt = {"kind": "tree", "root": {"says": "{message}"}}
    await rewrite(database, "stored_prompt_versions", {"name": "support"}, prompt=prompt)
    for path in ("/prompts", "/prompts/support", "/prompts/support/versions/1"):
        found = await http.get(path)
        assert found.status_code in (200, 404), (path, found.text)
    assert (await http.get("/prompts/support/versions/1")).json()["prompt"] == prompt


@pytest.fixture
async def rolling(database: Database, tmp_path: Path) -> RollingWorld:
    world = RollingWorld(database)
    await world.serialized(tiny_files(tmp_path / "repo"))
    assert await world.bring_up(RUN) is Step.DONE
    world.clock.advance(60)
    await world.routing.refresh()
    return world


async def test_rollout_of_the_next_version_is_shown_and_kept(rolling: RollingWorld) -> None:
    await rolling.redeploy(RedeployRequest(canary=0.25, canary_s=600))
    key = {"submission_id": ID}
    replaced = {
        "artifact_key": "a" * 64,
        "run": 1,
        "max_model_tokens": 512,
        "quantization": "fp2",
        **EXTRA,
    }
    failure = {"code": "moody", "detail": "It is moody.", "blame": "weather", **EXTRA}
    await rewrite(
        rolling.database, "rollouts", key, phase="mirroring", replaced=replaced, failure=failure
    )
    await rolling.rollouts.step()
    await rolling.routing.refresh()
    found = (await rolling.submission()).rollout
    assert found is not None
    assert (found.phase.value, found.phase.is_unknown) == ("mirroring", True)
    assert await plain(rolling.database, "rollouts", "phase", **key) == "mirroring"


async def test_canary_conversation_in_an_unknown_bucket_is_judged(rolling: RollingWorld) -> None:
    await rolling.redeploy(RedeployRequest(canary=0.25, canary_s=600))
    for is_new in (False, True):
        talk = rolling.canaries.conversation(Arm(ID, 2, is_new), f"conv_{is_new}")
        talk.note_reply(0.1)
    await rolling.canaries.write()
    key = {"submission_id": ID}
    await rewrite(rolling.database, "canary_conversations", key, first_bucket=9_999)
    await rolling.rollouts.step()
    found = (await rolling.submission()).rollout
    assert found is not None
    assert found.failure is None
    assert await plain(rolling.database, "canary_conversations", "first_bucket", **key) == 9_999


async def test_places_of_a_gateway_of_the_next_version_are_counted(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)))
    later = world.clock.now() + timedelta(hours=1)
    async with database.write() as session:
        session.add(
            GatewayPlacesRow(
                submission_id=ID,
                gateway="newer",
                held=1,
                wanted=2,
                apps={"app": 1},
                submissions={ID: {"app": 1}, "a-new-kind": {"app": 1}},
                held_until=later,
            )
        )
    await world.places.share()
    await world.greet(http, conversation)


async def test_alerts_of_the_next_version_are_listed_and_kept(database: Database) -> None:
    world = World(database, alert_webhook_url="http://127.0.0.1:8999/hook")
    now = world.clock.now()
    async with database.write() as session:
        session.add(
            AlertRow(
                name=AlertName.DAILY_SPEND, severity=Severity.WARNING, sentence="So.", began_at=now
            )
        )
        session.add(
            AlertMessageRow(
                kind=AlertMessageKind.FIRING,
                alert=AlertName.DAILY_SPEND,
                body="{}",
                state=DeliveryState.PENDING,
                created_at=now,
                next_attempt_at=now,
            )
        )
    await rewrite(database, "alerts", {"sentence": "So."}, name="weather", severity="storm")
    await rewrite(
        database, "alert_messages", {"body": "{}"}, kind="mood", alert="weather", state="held"
    )
    world.clock.advance(60)
    await world.platform.rooms.alerts.loop.run_once()
    listed = await (await world.http(Role.ADMIN)).get("/alerts")
    assert listed.status_code == 200, listed.text
    (shown,) = listed.json()["firing"]
    assert (shown["name"], shown["severity"]) == ("weather", "storm")
    assert await plain(database, "alert_messages", "state", body="{}") == "held"


async def test_scores_of_the_next_version_are_shown_and_counted_on(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    backend = await world.account(Role.BACKEND, "app")
    await rate(world, backend, ID, "user-1", True)
    await world.count()
    key = {"submission_id": ID}
    for table, field in (
        ("scores", "tally"),
        ("standings", "metrics"),
        ("score_points", "figures"),
    ):
        more = EXTRA if table != "scores" else {"smiles": 3}
        value = json.loads(await plain(database, table, field, **key)) | more
        await rewrite(database, table, key, **{field: json.dumps(value)})
    world.restart()
    http = await world.http(Role.DEVELOPER, "ada")
    (row,) = (await http.get("/leaderboard")).json()["rows"]
    assert row["thumbs_up"] == 1
    history = await http.get(f"/submissions/{ID}/score-history")
    assert (history.status_code, len(history.json()["points"])) == (200, 1)
    await rate(world, backend, ID, "user-2", True)
    await world.count()
    (row,) = (await http.get("/leaderboard")).json()["rows"]
    assert row["thumbs_up"] == 2
    assert json.loads(await plain(database, "scores", "tally", **key))["smiles"] == 3
