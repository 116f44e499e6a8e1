"""Competitions over HTTP."""

from __future__ import annotations

from datetime import timedelta

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.world import World


async def test_open_competition_exists_and_admins_make_others(database: Database) -> None:
    world = World(database)
    admin, developer = await world.http(Role.ADMIN), await world.http(Role.DEVELOPER)
    assert [one["id"] for one in (await developer.get("/competitions")).json()] == ["open"]
    now = world.clock.now()
    rules = {"name": "Autumn", "starts_at": now.isoformat()}
    assert (await developer.put("/competitions/autumn", json=rules)).status_code == 403
    made = await admin.put("/competitions/autumn", json=rules)
    assert (made.status_code, made.json()["ranking"]) == (200, "thumbs_up")
    changed = await admin.put("/competitions/autumn", json=rules | {"ranking": "combined"})
    assert changed.json()["ranking"] == "combined"
    found = (await developer.get("/competitions/autumn")).json()
    assert found == changed.json()
    assert (await developer.get("/competitions/winter")).json()["error"] == "competition_not_found"


async def test_a_window_that_ends_before_it_starts_is_refused(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    now = world.clock.now()
    rules = {
        "name": "Autumn",
        "starts_at": now.isoformat(),
        "ends_at": (now - timedelta(days=1)).isoformat(),
    }
    answer = await admin.put("/competitions/autumn", json=rules)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert "ends_at must be later" in answer.json()["detail"]


@pytest.mark.both_databases
async def test_a_conversation_enters_only_a_competition_that_runs(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER))
    admin, backend = await world.http(Role.ADMIN), await world.http(Role.BACKEND)
    now = world.clock.now()
    rules = {"name": "Next", "starts_at": (now + timedelta(days=1)).isoformat()}
    await admin.put("/competitions/next", json=rules)
    body = {"user_id": "u", "bot": {"name": "Luna"}, "consent": True}
    for competition, code in (("next", "competition_closed"), ("none", "competition_not_found")):
        answer = await backend.post("/conversations", json=body | {"competition": competition})
        assert answer.json()["error"] == code
    assert (await backend.post("/conversations", json=body)).status_code == 201


async def test_a_competition_that_has_not_begun_is_not_frozen(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    begins = world.clock.now() + timedelta(days=1)
    await admin.put("/competitions/next", json={"name": "Next", "starts_at": begins.isoformat()})
    refused = await admin.post("/competitions/next/freeze")
    assert (refused.status_code, refused.json()["error"]) == (409, "competition_closed")
    assert f"begins on {begins:%Y-%m-%d at %H:%M} UTC" in refused.json()["detail"]
    assert (await admin.get("/competitions/next")).json()["frozen_at"] is None
    world.clock.advance(2 * 86_400)
    assert (await admin.post("/competitions/next/freeze")).status_code == 200


async def test_a_closed_competition_says_why_it_takes_nobody(database: Database) -> None:
    world = World(database)
    admin, backend = await world.http(Role.ADMIN), await world.http(Role.BACKEND)
    now = world.clock.now()
    windows = {
        "coming": {"starts_at": (now + timedelta(days=1)).isoformat()},
        "gone": {
            "starts_at": (now - timedelta(days=2)).isoformat(),
            "ends_at": (now - timedelta(days=1)).isoformat(),
        },
        "frozen": {"starts_at": (now - timedelta(days=1)).isoformat()},
    }
    for name, window in windows.items():
        made = await admin.put(f"/competitions/{name}", json={"name": name, **window})
        assert made.status_code == 200, made.text
    await admin.post("/competitions/frozen/freeze")
    body = {"user_id": "u", "bot": {"name": "Luna"}, "consent": True}
    for name, says in (("coming", "begins on"), ("gone", "ended on"), ("frozen", "is frozen")):
        answer = await backend.post("/conversations", json=body | {"competition": name})
        assert (answer.status_code, answer.json()["error"]) == (409, "competition_closed")
        assert says in answer.json()["detail"]
