"""Tests what is kept of assignments that can be made again, for how long, and how an operator makes one again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from guanaco.accounts import Role
from guanaco.errors import ModelUnavailable
from guanaco_server.database.database import Database
from guanaco_server.routing.tables import SnapshotRow
from tests.fixtures.world import World
from tests.integration.test_assignment import NAMES, Assigning


@pytest.fixture
async def world(database: Database) -> Assigning:
    world = Assigning(database)
    await world.publish_all(*NAMES)
    await world.rule(assignment={"kind": "uniform", "seed": 7})
    return world


async def kept(world: World) -> int:
    async with world.database.read() as session:
        return await session.scalar(select(func.count()).select_from(SnapshotRow)) or 0


async def replayed(world: World, conversation: str) -> tuple[str | None, bool | None]:
    admin = await world.http(Role.ADMIN, "root")
    answer = await admin.get(f"/conversations/{conversation}/assignment")
    assert answer.status_code == 200
    return answer.json()["replayed"], answer.json()["is_same"]


@pytest.mark.both_databases
async def test_snapshots_unused_for_a_month_are_dropped_others_stay(
    world: Assigning,
) -> None:
    http = await world.http(Role.BACKEND, "app")
    given = []
    for number in range(4):
        conversation, submission = await world.begin(http, f"user-{number}")
        given.append((conversation, submission))
        await world.greet(http, conversation)
        await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
        await world.count()
    assert await kept(world) == 4
    world.clock.advance(timedelta(days=29).total_seconds())
    last = await world.begin(http, "user-5")
    assert await kept(world) == 5, "a month has not gone by"
    world.clock.advance(timedelta(days=2).total_seconds())
    assert await replayed(world, given[0][0]) == (given[0][1], True)
    await world.greet(http, last[0])
    await http.post(f"/conversations/{last[0]}/feedback", json={"thumbs_up": True})
    await world.count()
    newest = await world.begin(http, "user-6")
    assert await kept(world) == 2
    assert await replayed(world, given[0][0]) == (None, None)
    assert await replayed(world, last[0]) == (last[1], True)
    assert await replayed(world, newest[0]) == (newest[1], True)


async def test_a_snapshot_that_is_used_again_and_again_stays(world: Assigning) -> None:
    http = await world.http(Role.BACKEND, "app")
    first = await world.begin(http, "user-0")
    for day in range(40):
        world.clock.advance(timedelta(days=1).total_seconds())
        last = await world.begin(http, f"user-{day}")
    assert await kept(world) == 1
    await world.greet(http, last[0])
    await http.post(f"/conversations/{last[0]}/feedback", json={"thumbs_up": True})
    await world.count()
    await world.begin(http, "user-41")
    assert await kept(world) == 2
    assert await replayed(world, first[0]) == (first[1], True)


async def test_only_an_admin_sees_it_and_only_with_a_seed(
    world: Assigning,
) -> None:
    await world.rule(assignment={"kind": "uniform"})
    http = await world.http(Role.BACKEND, "app")
    conversation, submission = await world.begin(http, "sam")
    assert (await http.get(f"/conversations/{conversation}/assignment")).status_code == 403
    admin = await world.http(Role.ADMIN, "root")
    found = (await admin.get(f"/conversations/{conversation}/assignment")).json()
    assert (found["submission_id"], found["decision"], found["is_same"]) == (submission, None, None)
    nothing = await admin.get("/conversations/conv_none/assignment")
    assert (nothing.status_code, nothing.json()["error"]) == (404, "conversation_not_found")


@pytest.mark.both_databases
@pytest.mark.slow
async def test_many_messages_to_a_gone_submission_cost_one_snapshot(
    world: Assigning, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    list_serving = world.submissions.catalog.list_serving

    async def counted():  # type: ignore[no-untyped-def]
        nonlocal looks
        looks += 1
        return await list_serving()

    monkeypatch.setattr(world.submissions.catalog, "list_serving", counted)
    asked = [world.routing.target("gone_v1") for _ in range(50)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {ModelUnavailable}
    assert looks == 1


@pytest.mark.slow
async def test_what_another_process_published_a_moment_ago_is_found(database: Database) -> None:
    here, there = Assigning(database), Assigning(database)
    await here.publish_all("old_v1")
    await there.routing.refresh()
    assert await there.routing.target("old_v1")
    await here.publish(await here.account(Role.DEVELOPER, "ada"), "fresh_v1")
    there.deployments.note_replicas("fresh_v1", ("memory://fresh_v1",))
    assert (await there.routing.target("fresh_v1")).serving.id == "fresh_v1"
