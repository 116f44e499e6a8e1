"""Aliases and tags of submissions, and conversations with a model that the app has chosen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from guanaco.accounts import KeyRequest, Role
from guanaco.aliases import MAX_ALIASES
from guanaco.submissions import SubmissionKind
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.world import BOT, World

ALIAS = "acme/tiny@champion"


async def two_versions(
    database: Database, **changes: Any
) -> tuple[World, httpx.AsyncClient, str, str]:
    """A world with two live submissions of one developer, and the developer's client."""
    world = World(database, Script(("Hi.",)), **changes)
    ada = await world.account(Role.DEVELOPER, "ada")
    first, second = [await world.publish(ada, f"acme-tiny_v{n}") for n in (1, 2)]
    return world, await world.http(Role.DEVELOPER, "ada"), first, second


async def opened(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"user_id": "u1", "bot": BOT.model_dump(), "consent": True, **fields}
    return await http.post("/conversations", json=body)


def said(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


@pytest.mark.both_databases
async def test_an_alias_moves_and_stands_wherever_an_id_can(database: Database) -> None:
    world, http, first, second = await two_versions(database)
    assert said(await http.get(f"/submissions/{ALIAS}")) == (404, "submission_not_found")
    made = await http.put(f"/submissions/{first}/aliases/champion")
    assert (made.json()["alias"], made.json()["submission_id"]) == (ALIAS, first)
    for path in (ALIAS, ALIAS.replace("/", "%2F").replace("@", "%40")):
        found = await http.get(f"/submissions/{path}")
        assert (found.json()["id"], found.json()["aliases"]) == (first, [ALIAS])
    moved = await http.put(f"/submissions/{second}/aliases/champion")
    assert moved.json()["submission_id"] == second
    assert (await http.get(f"/submissions/{ALIAS}/metrics")).json()["submission_id"] == second
    preview = await http.post(f"/submissions/{ALIAS}/preview", json={"bot": BOT.model_dump()})
    assert preview.json()["content"] == "Hi."
    assert [one["aliases"] for one in (await http.get("/submissions")).json()] == [[ALIAS], []]
    assert [one["alias"] for one in (await http.get("/aliases")).json()] == [ALIAS]
    assert (await http.delete(f"/submissions/{ALIAS}/aliases/champion")).status_code == 204
    assert (await http.get(f"/submissions/{ALIAS}")).status_code == 404
    assert (await http.delete(f"/submissions/{second}/aliases/champion")).status_code == 404
    admin = await world.http(Role.ADMIN)
    noted = [entry["action"] for entry in (await admin.get("/audit")).json()["items"]]
    assert noted.count("set alias") == 2
    assert noted.count("remove alias") == 1


async def test_an_alias_is_its_developers_own(database: Database) -> None:
    world, http, first, second = await two_versions(database)
    bob = await world.account(Role.DEVELOPER, "bob")
    theirs = await world.publish(bob, "acme-tiny_v9")
    stranger = await world.http(Role.DEVELOPER, "bob")
    await http.put(f"/submissions/{first}/aliases/champion")
    assert (await stranger.put(f"/submissions/{second}/aliases/champion")).status_code == 404
    assert said(await stranger.get(f"/submissions/{ALIAS}")) == (404, "submission_not_found")
    await stranger.put(f"/submissions/{theirs}/aliases/champion")
    assert (await stranger.get(f"/submissions/{ALIAS}")).json()["id"] == theirs
    assert (await http.get(f"/submissions/{ALIAS}")).json()["id"] == first
    admin = await world.http(Role.ADMIN)
    assert said(await admin.get(f"/submissions/{ALIAS}")) == (409, "ambiguous_alias")
    bad = await http.put(f"/submissions/{first}/aliases/Not%20one")
    assert (bad.status_code, bad.json()["error"]) == (422, "invalid_input")
    nobody = world.http_with({"Authorization": "Bearer wrong"})
    assert (await nobody.get(f"/submissions/{ALIAS}")).status_code == 401
    assert (await world.http_with({}).get(f"/submissions/{ALIAS}")).status_code in (401, 409)


async def test_a_submission_has_so_many_aliases_at_most(database: Database) -> None:
    _, http, first, second = await two_versions(database)
    for number in range(MAX_ALIASES):
        made = await http.put(f"/submissions/{first}/aliases/a{number}")
        assert made.status_code == 200
    one_more = await http.put(f"/submissions/{first}/aliases/one-more")
    assert said(one_more) == (422, "invalid_input")
    assert (await http.put(f"/submissions/{first}/aliases/a0")).status_code == 200
    assert (await http.put(f"/submissions/{second}/aliases/a0")).status_code == 200
    assert (await http.put(f"/submissions/{first}/aliases/one-more")).status_code == 200


async def test_a_model_is_read_by_its_alias_with_openais_client(database: Database) -> None:
    world, http, first, _ = await two_versions(database)
    await http.put(f"/submissions/{first}/aliases/champion")
    root = str(http.base_url).removesuffix("/").removesuffix("/api/v1")
    read = await http.get(f"{root}/v1/models/{ALIAS}")
    assert (read.status_code, read.json()["id"]) == (200, first)
    assert (await http.get(f"{root}/v1/models/acme/tiny@none")).status_code == 404
    bob = await world.http(Role.DEVELOPER, "bob")
    assert (await bob.get(f"{root}/v1/models/{ALIAS}")).status_code == 404, "another developer's"


@pytest.mark.both_databases
async def test_tags_filter_the_list(database: Database) -> None:
    _, http, first, second = await two_versions(database)
    await http.put(f"/submissions/{first}/tags", json={"tags": ["lora", "night", "lora"]})
    await http.put(f"/submissions/{second}/tags", json={"tags": ["night"]})

    async def ids(**params: Any) -> list[str]:
        return [one["id"] for one in (await http.get("/submissions", params=params)).json()]

    assert await ids(tag="night") == [second, first]
    assert await ids(tag=["night", "lora"]) == [first]
    assert await ids(tag="none-such") == []
    assert (await http.get(f"/submissions/{first}")).json()["tags"] == ["lora", "night"]
    for wrong in (["No Good"], ["x"] * 17, "lora"):
        answer = await http.put(f"/submissions/{first}/tags", json={"tags": wrong})
        assert answer.status_code == 422
    await http.put(f"/submissions/{first}/tags", json={"tags": []})
    assert await ids(tag="lora") == []


async def test_key_with_permission_talks_to_the_model_it_names(database: Database) -> None:
    world, ada, first, second = await two_versions(database)
    await ada.put(f"/submissions/{first}/aliases/champion")
    plain = await world.http(Role.BACKEND, "app")
    assert said(await opened(plain, model=first)) == (403, "forbidden")
    key = await world.accounts.create_key(
        KeyRequest(role=Role.BACKEND, name="app", may_choose_models=True)
    )
    http = world.http_with({"Authorization": f"Bearer {key.key}"})
    for name in (first, ALIAS):
        answer = await opened(http, model=name)
        assert answer.json()["submission_id"] == first, answer.text
    path = f"/conversations/{answer.json()['conversation_id']}"
    assert (await http.get(path)).json()["is_chosen"] is True
    assert (await opened(http)).json()["submission_id"] in (first, second)
    assert said(await opened(http, model="nobody-has_v1")) == (404, "submission_not_found")
    assert (await opened(http, model=first, competition="spring")).status_code == 422
    long = {**BOT.model_dump(), "memory": "word " * 3_000}
    assert said(await opened(http, model=first, bot=long)) == (422, "persona_too_long")
    await ada.post(f"/submissions/{first}/deactivate")
    assert said(await opened(http, model=ALIAS)) == (409, "model_not_live")
    reward = await world.publish(
        await world.account(Role.DEVELOPER, "ada"), "acme-tiny_v5", kind=SubmissionKind.REWARD
    )
    assert said(await opened(http, model=reward)) == (422, "invalid_input")


async def test_a_developer_talks_to_their_own_submissions_only(database: Database) -> None:
    world, ada, first, _ = await two_versions(database)
    bob = await world.account(Role.DEVELOPER, "bob")
    theirs = await world.publish(bob, "acme-tiny_v9")
    answer = await opened(ada, model=first)
    path = f"/conversations/{answer.json()['conversation_id']}"
    assert (await ada.post(f"{path}/messages", json={"content": "Hello"})).status_code == 200
    assert (await ada.post(f"{path}/continue")).status_code == 200
    assert said(await opened(ada, model=theirs)) == (404, "submission_not_found")
    assert said(await opened(ada)) == (403, "forbidden")
    app = await world.http(Role.BACKEND, "app")
    assert (await ada.get(f"/conversations/{await world.open(app)}")).status_code == 404


async def test_a_chosen_model_gains_nothing_on_the_leaderboard(database: Database) -> None:
    world, ada, first, second = await two_versions(database)
    key = await world.accounts.create_key(
        KeyRequest(role=Role.BACKEND, name="app", may_choose_models=True)
    )
    http = world.http_with({"Authorization": f"Bearer {key.key}"})

    async def rated(**fields: Any) -> str:
        found = (await opened(http, **fields)).json()
        path = f"/conversations/{found['conversation_id']}"
        await http.post(f"{path}/messages", json={"content": "Hello"})
        answer = await http.post(f"{path}/feedback", json={"thumbs_up": True})
        assert answer.status_code == 201, answer.text
        return str(found["submission_id"])

    await rated(model=first)
    counted = await rated(user_id="u2")
    await world.count()
    up = {one: (await ada.get(f"/submissions/{one}/metrics")).json() for one in (first, second)}
    for one, metrics in up.items():
        assert metrics["feedback_count"] == (one == counted)
        assert metrics["thumbs_up"] == (one == counted)
    rows = (await ada.get("/leaderboard")).json()["rows"]
    assert {row["submission_id"]: row["feedback_count"] for row in rows} == {
        first: int(counted == first),
        second: int(counted == second),
    }
    assert (await ada.get(f"/submissions/{first}/feedback")).status_code == 200


@pytest.mark.both_databases
async def test_an_alias_stands_in_bodies_and_filters_too(database: Database) -> None:
    world, ada, first, second = await two_versions(database)
    for one, name in ((first, "champion"), (second, "challenger")):
        await ada.put(f"/submissions/{one}/aliases/{name}")
    admin = await world.http(Role.ADMIN)
    rules = {"name": "Spring", "starts_at": "2026-01-01T00:00:00Z"}
    weighted = rules | {"assignment": {"weights": {ALIAS: 2, second: 1}}}
    made = await admin.put("/competitions/spring", json=weighted)
    assert made.json()["assignment"]["weights"] == {first: 2, second: 1}, made.text
    twice = rules | {"assignment": {"weights": {ALIAS: 2, first: 1}}}
    assert said(await admin.put("/competitions/spring", json=twice)) == (422, "invalid_input")
    variants = [{"name": "a", "model": ALIAS}, {"name": "b", "model": "acme/tiny@challenger"}]
    drawn = await admin.post("/experiments", json={"name": "versions", "variants": variants})
    assert [one["model"] for one in drawn.json()["variants"]] == [first, second]
    assert (await admin.get("/votes/flags", params={"submission": ALIAS})).json() == []
    unknown = await admin.get("/votes/flags", params={"submission": "acme/tiny@nobody"})
    assert unknown.status_code == 404
    judge = await world.publish(
        await world.account(Role.DEVELOPER, "ada"),
        "acme-judge_v1",
        kind=SubmissionKind.REWARD,
    )
    await ada.put(f"/submissions/{judge}/aliases/judge")
    body = {"repo": "acme/new", "params": {"best_of": 2}, "reward": "acme/tiny@judge"}
    entered = await ada.post("/submissions", json=body)
    assert entered.json()["reward"] == judge, entered.text
