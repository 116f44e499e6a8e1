"""Submitting, following and moving submissions over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.errors import StageFault
from guanaco.submissions import Outcome, Stage, Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.pipeline.records import PipelineRun
from tests.fixtures.world import World, eventually


async def submit(http: httpx.AsyncClient, key: str | None = None, **body: object) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await http.post("/submissions", json={"repo": "Acme/Tiny"} | body, headers=headers)


@pytest.mark.both_databases
async def test_submissions_of_a_name_are_numbered(database: Database) -> None:
    http = await World(database).http(Role.DEVELOPER)
    answers = await asyncio.gather(*(submit(http) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {202}
    numbers = sorted(answer.json()["id"] for answer in answers)
    assert numbers == [f"acme-tiny_v{number}" for number in range(1, 6)]
    listed = (await http.get("/submissions")).json()
    assert {one["status"] for one in listed} == {"queued"}


@pytest.mark.both_databases
async def test_one_idempotency_key_gives_one_submission_also_when_two_race(
    database: Database,
) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    answers = await asyncio.gather(*(submit(http, "k1") for _ in range(4)))
    assert {answer.json()["id"] for answer in answers} == {"acme-tiny_v1"}
    other = await submit(http, "k1", name="Other")
    assert (other.status_code, other.json()["error"]) == (409, "idempotency_conflict")
    stranger = await world.http(Role.DEVELOPER, "bob")
    assert (await submit(stranger, "k1")).json()["id"] == "acme-tiny_v2"


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"repo": "nothing"}, "repo: It should look like org/name"),
    ({"repo": "../../etc"}, "repo: It should look like org/name"),
    ({"params": {"temperature": 9}}, "params.temperature"),
    ({"params": {"top_q": 1}}, "params.top_q"),
    ({"params": {"stopping_words": [""]}}, "params.stopping_words.0"),
    ({"formatter": {"memory_template": "x"}}, "memory_template must contain {memory}"),
    ({"formatter": {"bot_template": "{message.__class__}"}}, "not one of its fields"),
    ({"formatter": {"bot_template": "{message"}}, "is broken"),
    ({"dtype": "float8"}, "dtype: "),
    ({"quantization": "int2"}, "quantization: "),
    ({"revision": "--help"}, "revision: It should be a branch"),
    ({"name": "two\nlines"}, "name: It should be"),
]


async def test_bad_requests_get_a_sentence_and_leave_nothing(
    database: Database, subtests: pytest.Subtests
) -> None:
    http = await World(database).http(Role.DEVELOPER)
    for body, says in BAD_REQUESTS:
        with subtests.test(says):
            answer = await submit(http, **body)
            assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
            assert says in answer.json()["detail"]
            assert (await http.get("/submissions")).json() == []


async def test_weights_and_base_are_kept_through_a_redeploy(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    run = PipelineRun((await submit(http, dtype="float16", quantization="fp8")).json()["id"], 1)
    await world.journal.begin_stage(run, Stage.RESOLVE)
    facts = {"commit": "c" * 40, "base_repo": "acme/base", "base_commit": "b" * 40}
    await world.journal.end_stage(run, Stage.RESOLVE, facts)
    await http.post(f"/submissions/{run.submission_id}/cancel")

    again = (await http.post(f"/submissions/{run.submission_id}/redeploy")).json()

    assert again == again | facts | {"dtype": "float16", "quantization": "fp8", "run": 2}


async def test_a_developer_sees_only_her_own(database: Database) -> None:
    world = World(database)
    ada, bob = await world.http(Role.DEVELOPER, "ada"), await world.http(Role.DEVELOPER, "bob")
    admin = await world.http(Role.ADMIN)
    submission_id = (await submit(ada)).json()["id"]
    assert (await bob.get("/submissions")).json() == []
    assert len((await admin.get("/submissions")).json()) == 1
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/teardown")):
        answer = await bob.request(method, f"/submissions/{submission_id}{path}")
        assert (answer.status_code, answer.json()["error"]) == (404, "submission_not_found")


async def test_only_allowed_transitions_are_made(database: Database) -> None:
    http = await World(database).http(Role.DEVELOPER)
    submission_id = (await submit(http)).json()["id"]
    for action in ("deactivate", "reactivate", "redeploy", "teardown"):
        answer = await http.post(f"/submissions/{submission_id}/{action}")
        assert (answer.status_code, answer.json()["error"]) == (409, "illegal_transition")
    assert (await http.post(f"/submissions/{submission_id}/cancel")).json()["status"] == "cancelled"
    redeployed = (await http.post(f"/submissions/{submission_id}/redeploy")).json()
    assert (redeployed["status"], redeployed["run"]) == ("queued", 2)


@pytest.mark.both_databases
async def test_of_two_that_move_a_submission_at_once_one_loses(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    submission_id = (await submit(http)).json()["id"]
    answers = await asyncio.gather(
        *(http.post(f"/submissions/{submission_id}/cancel") for _ in range(4))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]


@pytest.mark.both_databases
async def test_events_are_numbered_without_gaps_and_resume(
    database: Database,
) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    run = PipelineRun((await submit(http)).json()["id"], 1)
    await asyncio.gather(*(world.journal.log(run, Stage.CHECK, f"line {n}") for n in range(10)))
    await http.post(f"/submissions/{run.submission_id}/cancel")
    path = f"/submissions/{run.submission_id}/events"

    whole = sse(await http.get(path))
    assert [event["seq"] for event in whole] == list(range(1, 13))
    rest = sse(await http.get(path, headers={"Last-Event-ID": "7"}))
    assert rest == whole[7:]


async def test_events_end_at_once_when_not_followed(database: Database) -> None:
    http = await World(database).http(Role.DEVELOPER)
    submission_id = (await submit(http)).json()["id"]
    answer = await http.get(f"/submissions/{submission_id}/events", params={"follow": False})
    assert len(sse(answer)) == 1


@pytest.mark.both_databases
async def test_a_stale_run_cannot_publish(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    stale = PipelineRun((await submit(http)).json()["id"], 1)
    await http.post(f"/submissions/{stale.submission_id}/cancel")
    await http.post(f"/submissions/{stale.submission_id}/redeploy")
    assert await world.journal.end_stage(stale, Stage.PUBLISH, {}) is Outcome.CANCELLED
    assert (
        await world.journal.fail_stage(stale, Stage.PUBLISH, StageFault("late"))
        is Outcome.CANCELLED
    )
    assert (await http.get(f"/submissions/{stale.submission_id}")).json()["status"] == "queued"


IMPOSSIBLE_EVENT_IDS: list[str] = ["-1", "x", "2147483648", "9" * 30]


async def test_foreign_last_event_id_is_refused(
    database: Database, subtests: pytest.Subtests
) -> None:
    http = await World(database).http(Role.DEVELOPER)
    submission_id = (await submit(http)).json()["id"]
    path = f"/submissions/{submission_id}/events"
    for last in IMPOSSIBLE_EVENT_IDS:
        with subtests.test(last=last):
            answer = await http.get(path, headers={"Last-Event-ID": last}, params={"follow": False})
            assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


@pytest.mark.both_databases
async def test_follower_gets_events_live_and_ends_with_the_run(
    database: Database,
) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    run = PipelineRun((await submit(http)).json()["id"], 1)
    feed = world.events.follow(run.submission_id, 0)
    whole = asyncio.create_task(http.get(f"/submissions/{run.submission_id}/events"))
    async with asyncio.timeout(30):
        first = await anext(feed)
        assert first is not None
        assert first.seq == 1
        assert await anext(feed) is None
        await world.journal.log(run, Stage.CHECK, "news")
        second = await anext(feed)
        assert second is not None
        assert second.message == "news"
        await http.post(f"/submissions/{run.submission_id}/cancel")
        rest = [event async for event in feed if event is not None]
        assert [event.data["status"] for event in rest] == ["cancelled"]
        assert [event["seq"] for event in sse(await whole)] == [1, 2, 3]


@pytest.mark.slow
async def test_deactivated_submission_keeps_its_conversations_but_gets_no_new(
    database: Database,
) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "acme-tiny_v1")
    developer = await world.http(Role.DEVELOPER, "ada")
    backend = await world.http(Role.BACKEND)
    conversation = await world.open(backend)
    await world.routing.start()

    async def is_assigned() -> bool:
        return (await backend.get("/assignment")).status_code == 200

    async def is_refused() -> bool:
        return not await is_assigned()

    moved = await developer.post("/submissions/acme-tiny_v1/deactivate")
    assert moved.json()["status"] == "inactive"
    await eventually(is_refused)
    path = f"/conversations/{conversation}/messages"
    assert (await backend.post(path, json={"content": "Still there?"})).status_code == 200

    moved = await developer.post("/submissions/acme-tiny_v1/reactivate")
    assert moved.json()["status"] == "deployed"
    await eventually(is_assigned)
    await world.routing.stop()


@pytest.mark.slow
async def test_torn_down_submission_is_withdrawn_and_its_conversations_end(
    database: Database,
) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "acme-tiny_v1")
    await world.deployments.wish(Deployment("acme-tiny_v1", 1, "a" * 64, 1_096))
    await world.deployments.mark_ready("acme-tiny_v1", "memory://1")
    developer = await world.http(Role.DEVELOPER, "ada")
    backend = await world.http(Role.BACKEND)
    conversation = await world.open(backend)

    moved = await developer.post("/submissions/acme-tiny_v1/teardown")

    assert moved.json()["status"] == "torn_down"
    assert await world.deployments.list_wishes() == []
    assert not world.deployments.replicas("acme-tiny_v1")
    assert world.deployments.woken.is_set()
    answer = await backend.post(f"/conversations/{conversation}/messages", json={"content": "Hi"})
    assert (answer.status_code, answer.json()["error"]) == (503, "model_unavailable")
    await world.routing.refresh()
    later = await backend.post(f"/conversations/{conversation}/messages", json={"content": "Hi"})
    assert later.json()["detail"] == "acme-tiny_v1 is not served now, so it cannot answer."
    assert (await backend.get("/assignment")).json()["error"] == "no_model_available"
    again = await developer.post("/submissions/acme-tiny_v1/teardown")
    assert (again.status_code, again.json()["error"]) == (409, "illegal_transition")


def test_every_status_can_be_left_or_is_left_by_redeploy() -> None:
    reachable = {source for sources in lifecycle.SOURCES.values() for source in sources}
    assert reachable == set(Status)
    assert set(lifecycle.SOURCES) == set(Status)


def sse(answer: httpx.Response) -> list[dict[str, object]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
