"""Tests what each developer may use: what is refused, what is said, and who may change it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import text, update

from guanaco.accounts import Role
from guanaco.errors import StorageQuotaExceeded
from guanaco.submissions import Status
from guanaco_server.database.database import Database
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.world import World

TINY = {"repo": "acme/tiny"}


class Limited(World):
    changes = {
        "quota_per_hour": 4,
        "quota_live": 3,
        "quota_in_progress": 2,
        "quota_artifact_bytes": 1_000,
    }


@pytest.fixture
def world(database: Database) -> Limited:
    return Limited(database)


async def submit(http: httpx.AsyncClient, *, times: int = 1) -> list[httpx.Response]:
    return await asyncio.gather(*(http.post("/submissions", json=TINY) for _ in range(times)))


async def become(world: World, status: Status, **columns: object) -> None:
    async with world.database.write() as session:
        await session.execute(update(SubmissionRow).values(status=status, **columns))


@pytest.mark.both_databases
async def test_concurrent_submits_are_taken_up_to_the_limit(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    answers = await submit(http, times=12)
    assert sorted(answer.status_code for answer in answers) == [202] * 2 + [409] * 10
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert refused.json()["error"] == "quota_exceeded"
    assert "2 submissions in the queue" in refused.json()["detail"]
    assert "when one of them has ended" in refused.json()["hint"]
    assert len((await http.get("/submissions")).json()) == 2


async def test_live_submissions_are_limited_until_one_is_torn_down(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    for _ in range(3):
        assert (await submit(http))[0].status_code == 202
        await become(world, Status.DEPLOYED)
    (refused,) = await submit(http)
    assert refused.status_code == 409
    assert "3 submissions that are live" in refused.json()["detail"]
    await http.post("/submissions/acme-tiny_v1/teardown")
    assert (await submit(http))[0].status_code == 202


async def test_the_hour_is_over_when_the_answer_says_so(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    for _ in range(4):
        assert (await submit(http))[0].status_code == 202
        await become(world, Status.CANCELLED)
        world.clock.advance(600)
    (refused,) = await submit(http)
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_submissions")
    assert refused.headers["retry-after"] == str(3_600 - 4 * 600)
    assert "20 minutes" in refused.json()["hint"]
    quota = (await http.get("/quota")).json()
    assert quota["per_hour"] == {"used": 4, "limit": 4}
    assert quota["next_submission_at"] is not None
    world.clock.advance(timedelta(minutes=20).total_seconds())
    assert (await submit(http))[0].status_code == 202


async def test_a_redeploy_counts_and_a_repeated_request_does_not(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    key = {"Idempotency-Key": "k"}
    for _ in range(9):
        assert (await http.post("/submissions", json=TINY, headers=key)).status_code == 202
    for _ in range(3):
        await http.post("/submissions/acme-tiny_v1/cancel")
        assert (await http.post("/submissions/acme-tiny_v1/redeploy")).status_code == 202
    await http.post("/submissions/acme-tiny_v1/cancel")
    assert (await http.post("/submissions/acme-tiny_v1/redeploy")).status_code == 429
    assert (await http.get("/submissions/acme-tiny_v1")).json()["status"] == "cancelled"


async def test_one_of_the_live_may_be_redeployed_at_the_limit(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    for _ in range(3):
        await submit(http)
        await become(world, Status.DEPLOYED)
    assert (await http.post("/submissions/acme-tiny_v1/redeploy")).status_code == 202


@pytest.mark.both_databases
async def test_racing_requests_with_one_key_are_one_submission(
    world: Limited,
) -> None:
    http = await world.http(Role.DEVELOPER)
    await submit(http)
    answers = await asyncio.gather(
        *(http.post("/submissions", json=TINY, headers={"Idempotency-Key": "k"}) for _ in range(4))
    )
    assert [answer.status_code for answer in answers] == [202] * 4


@pytest.mark.both_databases
async def test_weights_count_once_an_artifact_and_stop_oversized_models(
    world: Limited,
) -> None:
    http = await world.http(Role.DEVELOPER)
    await submit(http, times=2)
    await become(world, Status.DEPLOYED, weight_bytes=600, artifact_key="a" * 64)
    assert (await http.get("/quota")).json()["artifact_bytes"] == {"used": 600, "limit": 1_000}
    await submit(http)
    quotas = world.platform.rooms.submissions.quotas
    await quotas.take_disk("acme-tiny_v3", 400)
    with pytest.raises(Exception, match="401 bytes of weights, your other submissions have 600"):
        await quotas.take_disk("acme-tiny_v3", 401)
    await become(world, Status.DEPLOYED, weight_bytes=1_001)
    await http.post("/submissions/acme-tiny_v3/teardown")
    (refused,) = await submit(http)
    assert refused.status_code == 409
    assert "1,001 bytes of weights" in refused.json()["detail"]


@pytest.mark.both_databases
async def test_runs_in_check_at_once_count_each_other(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    await submit(http, times=2)
    quotas = world.platform.rooms.submissions.quotas
    found = await asyncio.gather(
        *(quotas.take_disk(f"acme-tiny_v{number}", 600) for number in (1, 2)),
        return_exceptions=True,
    )
    assert [type(one) for one in found].count(StorageQuotaExceeded) == 1
    assert (await http.get("/quota")).json()["artifact_bytes"]["used"] == 600


async def test_ended_artifacts_leave_when_their_bytes_are_needed(world: Limited) -> None:
    ada = await world.account(Role.DEVELOPER, "ada")
    old, new = "b" * 64, "c" * 64
    for key, place in ((old, "acme-old_v1"), (new, "acme-new_v1")):
        await world.store_artifact(key, {})
        await world.publish(
            ada,
            place,
            status=Status.TORN_DOWN,
            artifact_key=key,
            weight_bytes=400,
            commit=key[:40],
        )
    collector = world.platform.rooms.artifacts.collector
    await collector.sweep()
    world.clock.advance(600)
    await (await world.http(Role.DEVELOPER, "ada")).post("/submissions", json=TINY)
    quotas = world.platform.rooms.submissions.quotas
    ended = await quotas.take_disk("acme-tiny_v1", 200)
    assert ended is not None
    assert ended.size_bytes == {new: 400, old: 400}
    await collector.keep_within(ended.room_bytes, ended.size_bytes)
    assert {old, new} <= set(await world.store.list_keys())
    ended = await quotas.take_disk("acme-tiny_v1", 201)
    assert ended is not None
    await collector.keep_within(ended.room_bytes, ended.size_bytes)
    assert old not in await world.store.list_keys()
    assert new in await world.store.list_keys()


async def test_an_admin_has_no_limits_and_sets_those_of_others(world: Limited) -> None:
    admin, http = await world.http(Role.ADMIN), await world.http(Role.DEVELOPER, "ada")
    assert {answer.status_code for answer in await submit(admin, times=9)} == {202}
    assert (await admin.get("/quota")).json()["live"] == {"used": 9, "limit": None}
    wanted = {"in_progress": 5, "live": 0, "per_hour": 0}
    answer = await admin.put("/accounts/ada/quota", json=wanted)
    assert answer.json()["in_progress"] == {"used": 0, "limit": 5}
    answers = await submit(http, times=9)
    assert sorted(answer.status_code for answer in answers) == [202] * 5 + [409] * 4
    assert (await admin.put("/accounts/ada/quota", json={})).json()["live"]["limit"] == 3
    entries = (await admin.get("/audit")).json()["items"]
    assert [entry["subject"] for entry in entries if entry["action"] == "set quota"] == [
        "ada: as everybody",
        "ada: per_hour 0, live 0, in_progress 5",
    ]


async def test_a_developer_reads_their_own_quota_only(world: Limited) -> None:
    ada = await world.http(Role.DEVELOPER, "ada")
    assert (await ada.get("/quota")).json()["account"] == "ada"
    assert (await ada.get("/accounts/ada/quota")).status_code == 403
    assert (await ada.put("/accounts/ada/quota", json={"live": 9})).status_code == 403
    admin = await world.http(Role.ADMIN)
    assert (await admin.get("/accounts/nobody/quota")).status_code == 404
    assert (await admin.put("/accounts/ada/quota", json={"live": -1})).status_code == 422


@pytest.mark.both_databases
async def test_run_starts_are_forgotten_after_their_hour(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    for _ in range(3):
        await submit(http)
        await become(world, Status.CANCELLED)
        world.clock.advance(3_601)
    async with world.database.read() as session:
        assert (await session.scalars(text("SELECT count(*) FROM run_starts"))).one() == 1
