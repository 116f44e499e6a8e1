"""Sweeps over HTTP: all variants or none, once, counted once; and what is done with all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from guanaco.accounts import Role
from guanaco.submissions import Status
from guanaco_server.database.database import Database
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.world import World


class Limited(World):
    changes = {"quota_per_hour": 2, "quota_live": 1, "quota_in_progress": 1}


@pytest.fixture
def world(database: Database) -> Limited:
    return Limited(database)


def request(size: int = 3, **changes: Any) -> dict[str, Any]:
    variants = [
        {"repo": "acme/tiny", "name": f"v{place}", "params": {"temperature": place / 10}} | changes
        for place in range(size)
    ]
    return {"variants": variants}


async def enter(http: httpx.AsyncClient, body: dict[str, Any], key: str = "k") -> httpx.Response:
    return await http.post("/sweeps", json=body, headers={"Idempotency-Key": key})


@pytest.mark.both_databases
async def test_a_sweep_is_entered_once_and_counts_once(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    answers = await asyncio.gather(*(enter(http, request(12)) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [202] * 3
    (sweep,) = {answer.json()["id"] for answer in answers}
    assert sweep == "acme-tiny_sweep1"
    submissions = answers[0].json()["submissions"]
    assert [one["name"] for one in submissions] == [f"v{place}" for place in range(12)]
    assert {one["sweep"] for one in submissions} == {sweep}
    assert len((await http.get("/submissions")).json()) == 12
    quota = (await http.get("/quota")).json()
    assert [quota[kind]["used"] for kind in ("per_hour", "live", "in_progress")] == [1, 1, 1]
    (listed,) = (await http.get("/sweeps")).json()
    assert listed == (await http.get(f"/sweeps/{sweep}")).json()


async def test_a_sweep_counts_the_model_servers_that_it_needs(database: Database) -> None:
    class Roomy(Limited):
        changes = Limited.changes | {"quota_live": 3}

    http = await Roomy(database).http(Role.DEVELOPER)
    body = request(4)
    for variant, tokens in zip(body["variants"], (40, 50, 60, 70), strict=True):
        variant["params"]["max_output_tokens"] = tokens
    refused = await enter(http, body)
    assert refused.status_code == 409
    assert "needs 4 model servers, and your limit leaves room for 3 more" in refused.text
    del body["variants"][3]
    assert (await enter(http, body)).status_code == 202
    assert (await http.get("/quota")).json()["live"]["used"] == 3


@pytest.mark.both_databases
async def test_of_a_bad_sweep_nothing_is_entered(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    bad = request()
    bad["variants"][2]["params"] = {"temperature": 9}
    refused = await enter(http, bad)
    assert refused.status_code == 422
    assert "variants.2.params.temperature" in refused.text
    unusable = request(params={"best_of": 2})
    unusable["variants"][2]["reward"] = "nobody_v1"
    assert (await enter(http, unusable)).status_code in (404, 409, 422)
    assert (await enter(http, {"variants": []})).status_code == 422
    assert (await enter(http, request(65))).status_code == 422
    assert (await http.get("/submissions")).json() == []
    assert (await http.get("/sweeps")).json() == []
    assert (await http.get("/quota")).json()["per_hour"]["used"] == 0


@pytest.mark.slow
async def test_another_request_with_the_key_is_refused(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    assert (await enter(http, request())).status_code == 202
    assert (await enter(http, request(2))).status_code == 409


async def test_only_its_developer_and_admins_see_it(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    sweep = (await enter(http, request())).json()["id"]
    other = await world.http(Role.DEVELOPER, "other")
    answer = await other.get(f"/sweeps/{sweep}")
    assert (answer.status_code, answer.json()["error"]) == (404, "sweep_not_found")
    assert (await other.post(f"/sweeps/{sweep}/cancel")).status_code == 404
    assert (await other.get("/sweeps")).json() == []
    admin = await world.http(Role.ADMIN)
    assert (await admin.get(f"/sweeps/{sweep}")).status_code == 200


async def test_action_on_a_sweep_applies_to_every_fitting_variant(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    sweep = (await enter(http, request())).json()["id"]
    async with world.database.write() as session:
        row = update(SubmissionRow).where(SubmissionRow.sweep_place == 1)
        await session.execute(row.values(status=Status.DEPLOYED, artifact_key="a" * 64))
    assert await states(http, sweep, "cancel") == ["deployed", "cancelled", "cancelled"]
    assert await states(http, sweep, "deactivate") == ["inactive", "cancelled", "cancelled"]
    assert await states(http, sweep, "deactivate") == ["inactive", "cancelled", "cancelled"]
    assert await states(http, sweep, "reactivate") == ["deployed", "cancelled", "cancelled"]
    assert await states(http, sweep, "teardown") == ["torn_down", "cancelled", "cancelled"]


async def test_the_pipeline_sees_one_variant_until_it_is_served(world: Limited) -> None:
    http = await world.http(Role.DEVELOPER)
    await enter(http, request())
    records = world.platform.rooms.pipeline.records
    (first,) = await records.list_unfinished()
    assert first.run.submission_id == "acme-tiny_v1"
    async with world.database.write() as session:
        row = update(SubmissionRow).where(SubmissionRow.sweep_place == 1)
        await session.execute(row.values(status=Status.DEPLOYED, commit="c" * 40))
    unfinished = await records.list_unfinished()
    assert {each.run.submission_id for each in unfinished} == {"acme-tiny_v2", "acme-tiny_v3"}
    found = await records.found_by_sweep(await records.load(unfinished[0].run))
    assert found["commit"] == "c" * 40


async def states(http: httpx.AsyncClient, sweep: str, verb: str) -> list[str]:
    answer = await http.post(f"/sweeps/{sweep}/{verb}")
    assert answer.status_code == 200
    return [one["status"] for one in answer.json()["submissions"]]
