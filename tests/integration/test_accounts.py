"""Keys and roles, and that no route is left open by oversight."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy import select

from guanaco.accounts import KeyRequest, Role
from guanaco.errors import LastAdminKey
from guanaco_server.accounts import service
from guanaco_server.accounts.service import Account
from guanaco_server.accounts.tables import ApiKeyRow
from guanaco_server.database.database import Database
from tests.fixtures.world import World

PUBLIC = {
    "GET /api/v1/competitions",
    "GET /api/v1/competitions/{competition_id}",
    "GET /api/v1/competitions/{competition_id}/season",
    "GET /api/v1/leaderboard",
    "GET /api/v1/leaderboard/stability",
    "GET /api/v1/leaderboard/verdict",
    "GET /api/v1/submissions/{submission_id}/score-history",
    "GET /competitions",
    "GET /healthz",
    "GET /readyz",
}


@pytest.mark.slow
async def test_a_key_is_shown_once_and_stored_as_a_hash(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    created = (await admin.post("/keys", json={"role": "developer", "name": "ada"})).json()
    secret = created["key"].rpartition("_")[2]
    listed = await admin.get("/keys")
    assert secret not in listed.text
    async with database.read() as session:
        rows = (await session.scalars(select(ApiKeyRow))).all()
    assert secret not in "".join(row.secret_hash for row in rows)
    me = await world.http_with({"Authorization": f"Bearer {created['key']}"}).get("/me")
    assert me.json() == {"name": "ada", "role": "developer"}


async def test_of_many_with_one_key_one_asks_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = World(database).accounts
    key = (await accounts.create_key(KeyRequest(role=Role.DEVELOPER, name="ada"))).key
    seen = monotonic()
    asked = 0
    look_up = accounts._look_up

    async def counted(key: str) -> Account:
        nonlocal asked
        asked += 1
        return await look_up(key)

    monkeypatch.setattr(accounts, "_look_up", counted)
    await accounts.authenticate(key)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: seen + 3_600))
    found = await asyncio.gather(*(accounts.authenticate(key) for _ in range(20)))
    assert ({account.name for account in found}, asked) == ({"ada"}, 2)


async def test_missing_wrong_malformed_and_revoked_keys_open_nothing(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    key = await world.key(Role.DEVELOPER, "ada")
    key_id = key.split("_")[1]
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    assert (await admin.post(f"/keys/{key_id}/revoke")).json()["revoked_at"]
    for headers in (
        {},
        {"Authorization": "Basic abc"},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Bearer gk_00_ü".encode()},
        {"Authorization": f"Bearer {wrong}"},
        {"Authorization": f"Bearer {key}"},
    ):
        answer = await world.http_with(headers).get("/submissions")  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert (await admin.post("/keys/none/revoke")).json()["error"] == "key_not_found"


@pytest.mark.both_databases
async def test_the_last_admin_key_that_works_cannot_be_revoked(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    await world.key(Role.DEVELOPER, "ada")
    await admin.post("/keys", json={"role": "admin", "name": "grace"})
    ids = [one["id"] for one in (await admin.get("/keys")).json() if one["role"] == "admin"]
    by = await world.accounts.authenticate(await world.key(Role.BACKEND, "app"))
    results = await asyncio.gather(
        *(world.accounts.revoke_key(key, by) for key in ids), return_exceptions=True
    )
    (refused,) = [found for found in results if isinstance(found, BaseException)]
    assert isinstance(refused, LastAdminKey)
    assert "keys create --role admin" in (refused.hint or "")


FORBIDDEN: list[tuple[Role, str, str]] = [
    (Role.BACKEND, "GET", "/submissions"),
    (Role.BACKEND, "POST", "/submissions/x/cancel"),
    (Role.BACKEND, "GET", "/submissions/x/feedback"),
    (Role.DEVELOPER, "GET", "/assignment"),
    (Role.DEVELOPER, "POST", "/users/erase"),
    (Role.DEVELOPER, "GET", "/keys"),
    (Role.BACKEND, "GET", "/keys"),
]


async def test_a_key_of_the_wrong_role_is_forbidden(
    database: Database, subtests: pytest.Subtests
) -> None:
    world = World(database)
    for role, method, path in FORBIDDEN:
        with subtests.test(f"{role}: {method} {path}"):
            http = await world.http(role)
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
            assert f"yours is {role}" in answer.json()["detail"]


async def test_an_account_keeps_its_role(database: Database) -> None:
    world = World(database)
    admin = await world.http(Role.ADMIN)
    await admin.post("/keys", json={"role": "developer", "name": "ada"})
    second = await admin.post("/keys", json={"role": "developer", "name": "ada"})
    assert second.status_code == 201
    other = await admin.post("/keys", json={"role": "backend", "name": "ada"})
    assert (other.status_code, other.json()["error"]) == (409, "account_role_conflict")


async def test_every_route_is_public_on_purpose_or_needs_a_role(database: Database) -> None:
    routes = list(api_routes(World(database).app.routes))
    assert len(routes) > 25
    for route in routes:
        if not route.include_in_schema:
            continue  # a page: test_web.py holds those to their own guards
        guards = [d.call for d in dependencies(route.dependant) if hasattr(d.call, "roles")]
        names = {f"{method} {route.path}" for method in route.methods}
        assert bool(guards) != bool(names & PUBLIC), route.path


def api_routes(routes: object) -> Iterator[APIRoute]:
    for route in routes:  # type: ignore[attr-defined]
        if isinstance(route, APIRoute):
            yield route
        elif original := getattr(route, "original_router", None):
            yield from api_routes(original.routes)


def dependencies(dependant: Dependant) -> Iterator[Dependant]:
    for inner in dependant.dependencies:
        yield inner
        yield from dependencies(inner)
