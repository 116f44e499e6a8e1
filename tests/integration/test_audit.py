"""Tests what admins did is in the audit log if and only if it was done."""

from __future__ import annotations

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import send, signed_in

CUP = {"name": "Cup", "starts_at": "2020-01-01T00:00:00Z"}


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


async def log(world: WebWorld) -> list[tuple[str, str, str]]:
    """Oldest first."""
    entries = (await world.audit.list(100)).items[::-1]
    return [(one.account, one.action, one.subject) for one in entries]


def created(answer: httpx.Response) -> str:
    assert answer.status_code == 201, answer.text
    key_id: str = answer.json()["id"]
    return key_id


async def test_keys_that_an_admin_makes_and_revokes_are_noted(world: WebWorld) -> None:
    admin = await world.http(Role.ADMIN, "root")
    key = created(await admin.post("/keys", json={"name": "zoe", "role": "developer"}))
    conflict = await admin.post("/keys", json={"name": "zoe", "role": "backend"})
    assert conflict.status_code == 409
    for _ in range(2):
        assert (await admin.post(f"/keys/{key}/revoke")).status_code == 200
    assert await log(world) == [
        ("root", "create key", f"{key} of zoe (developer)"),
        ("root", "revoke key", f"{key} of zoe (developer)"),
    ]


async def test_a_competitions_beginning_changes_and_end_are_noted(world: WebWorld) -> None:
    admin = await world.http(Role.ADMIN, "root")
    changed = {**CUP, "ends_at": "2030-01-01T00:00:00Z", "ranking": "bradley_terry"}
    for rules in (CUP, CUP, changed):
        assert (await admin.put("/competitions/cup", json=rules)).status_code == 200
    for _ in range(2):
        assert (await admin.post("/competitions/cup/freeze")).status_code == 200
    assert (await admin.put("/competitions/cup", json=CUP)).status_code == 409
    assert await log(world) == [
        ("root", "create competition", "cup"),
        ("root", "change competition", "cup: ends_at, ranking"),
        ("root", "freeze competition", "cup"),
    ]


async def test_what_an_admin_does_with_anothers_submission_is_noted(world: WebWorld) -> None:
    one = await world.publish(await world.developer("ada"))
    ada, admin = await world.http(Role.DEVELOPER, "ada"), await world.http(Role.ADMIN, "root")
    for http, verb in (
        (ada, "deactivate"), (ada, "reactivate"), (admin, "deactivate"), (admin, "reactivate"), (admin, "teardown"),
        (admin, "redeploy"), (admin, "cancel"),
    ):  # fmt: skip
        answer = await http.post(f"/submissions/{one}/{verb}")
        assert answer.is_success, answer.text
    assert (await admin.post(f"/submissions/{one}/deactivate")).status_code == 409
    assert [entry for entry in await log(world) if entry[2] == one] == [
        ("root", f"{verb} submission", one)
        for verb in ("deactivate", "reactivate", "tear down", "redeploy", "cancel")
    ]


async def test_the_pages_note_it_too_and_show_it(world: WebWorld) -> None:
    one = await world.publish(await world.developer("ada"))
    root = await signed_in(world, Role.ADMIN, "root")
    await send(root, "/admin/keys", {"name": "zoe", "role": "developer"})
    key = (await world.accounts.list_keys())[-1].id
    await send(root, f"/admin/keys/{key}/revoke")
    rules = {"id": "cup", "name": "Cup", "starts_at": "2020-01-01T00:00"}
    await send(root, "/admin/competitions", rules)
    await send(root, "/admin/competitions/cup/freeze")
    await send(root, f"/submissions/{one}/deactivate")
    actions = ["create key", "revoke key", "create competition", "freeze competition"]
    assert [action for _, action, _ in await log(world)] == [*actions, "deactivate submission"]
    page = (await root.get("/admin/audit")).text
    assert all(action in page for action in actions)
