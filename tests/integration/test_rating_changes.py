"""Ratings that are changed or withdrawn within a day: what counts, what developers read, and what is kept."""

from __future__ import annotations

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.talking import talking
from tests.fixtures.world import World

UP, DOWN = {"thumbs_up": True, "text": "good"}, {"thumbs_up": False, "text": "bad"}


async def rated(database: Database) -> tuple[World, httpx.AsyncClient, str]:
    """A conversation with a rating, and the path of the rating."""
    world, http, conversation = await talking(database)
    await world.greet(http, conversation)
    path = f"/conversations/{conversation}/feedback"
    assert (await http.post(path, json=UP)).status_code == 201
    return world, http, path


async def votes(world: World) -> tuple[int, int, int]:
    """Thumbs up, thumbs down and rated conversations, as the leaderboard has them."""
    await world.count()
    admin = await world.http(Role.ADMIN, "root")
    figures = (await admin.get("/submissions/acme-tiny_v1/metrics")).json()
    counts = await world.scores.counts.kept()
    return figures["thumbs_up"], figures["thumbs_down"], counts.get("acme-tiny_v1", 0)


async def read_texts(world: World) -> list[str]:
    developer = await world.http(Role.DEVELOPER, "ada")
    page = (await developer.get("/submissions/acme-tiny_v1/feedback")).json()
    return [item["text"] for item in page["items"]]


@pytest.mark.both_databases
async def test_changed_rating_counts_and_the_trail_keeps_both(
    database: Database,
) -> None:
    world, http, path = await rated(database)
    assert await votes(world) == (1, 0, 1)
    assert await read_texts(world) == ["good"]
    world.clock.advance(3_600)
    changed = await http.put(path, json=DOWN)
    assert changed.status_code == 200, changed.text
    assert (changed.json()["thumbs_up"], changed.json()["text"]) == (False, "bad")
    assert (await http.get(path)).json() == changed.json()
    assert await votes(world) == (0, 1, 1)
    assert await read_texts(world) == ["bad"]
    admin = await world.http(Role.ADMIN, "root")
    trail = await admin.get(f"/feedback/{changed.json()['feedback_id']}/changes")
    assert [(one["thumbs_up"], one["text"], one["now_up"]) for one in trail.json()] == [
        (True, "good", False)
    ]
    assert (await http.get(f"/feedback/{changed.json()['feedback_id']}/changes")).status_code == 403


async def test_a_withdrawn_rating_counts_no_more_and_another_may_follow(database: Database) -> None:
    world, http, path = await rated(database)
    feedback_id = (await http.get(path)).json()["feedback_id"]
    assert await votes(world) == (1, 0, 1)
    assert (await http.delete(path)).status_code == 204
    assert await votes(world) == (0, 0, 0)
    assert await read_texts(world) == []
    for gone in (await http.get(path), await http.delete(path), await http.put(path, json=UP)):
        assert (gone.status_code, gone.json()["error"]) == (404, "not_rated")
    admin = await world.http(Role.ADMIN, "root")
    trail = (await admin.get(f"/feedback/{feedback_id}/changes")).json()
    assert [(one["thumbs_up"], one["now_up"]) for one in trail] == [(True, None)]
    assert (await http.post(path, json=DOWN)).status_code == 201
    assert await votes(world) == (0, 1, 1)


async def test_after_a_day_a_rating_stays_as_it_is(database: Database) -> None:
    world, http, path = await rated(database)
    other = await world.http(Role.BACKEND, "other")
    assert (await other.put(path, json=DOWN)).status_code == 404
    world.clock.advance(86_400)
    for late in (await http.put(path, json=DOWN), await http.delete(path)):
        assert (late.status_code, late.json()["error"]) == (409, "rating_settled")
    assert await votes(world) == (1, 0, 1)


@pytest.mark.both_databases
async def test_an_erasure_takes_the_trail_with_it(database: Database) -> None:
    world, http, path = await rated(database)
    feedback_id = (await http.put(path, json=DOWN)).json()["feedback_id"]
    admin = await world.http(Role.ADMIN, "root")
    assert (await admin.post("/users/erase", json={"user_id": "user-1"})).status_code == 200
    assert (await admin.get(f"/feedback/{feedback_id}/changes")).status_code == 404
    assert await votes(world) == (0, 0, 0)


async def test_a_copy_of_what_was_there_before_is_not_kept(database: Database) -> None:
    world, http, path = await rated(database)
    raw = await world.copies._load(10**6, None, 10)
    assert (await http.put(path, json=DOWN)).status_code == 200
    revisions = {one.row.id: one.row.revision for one in raw}
    await world.copies._apply(world.copies._copies(raw), revisions)
    assert await read_texts(world) == ["bad"]
