"""Tests what uniform assignment would have shown, from conversations that were assigned with a seed: over HTTP."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.leaderboard import uniform
from tests.integration.test_assignment import NAMES, Assigning


@pytest.fixture
async def world(database: Database) -> Assigning:
    world = Assigning(database)
    await world.publish_all(*NAMES)
    return world


@pytest.mark.both_databases
async def test_decisions_of_a_competition_say_what_uniform_assignment_had_shown(
    world: Assigning,
) -> None:
    """With weights of 1 and 3 the chances are 1/5 and 3/5, whatever the draws come to."""
    weights = {"old_v1": 3}
    await world.rule(assignment={"kind": "uniform", "seed": 7, "weights": weights})
    http = await world.http(Role.BACKEND, "app")
    likes = {"old_v1": True, "mid_v1": False, "new_v1": True}
    given: list[tuple[str, str]] = []
    while len({submission for _, submission in given}) < 3:
        conversation, submission = await world.begin(http, f"user-{len(given)}")
        await world.greet(http, conversation)
        body = {"thumbs_up": likes[submission]}
        await http.post(f"/conversations/{conversation}/feedback", json=body)
        given.append((conversation, submission))
    admin = await world.http(Role.ADMIN)
    for conversation, submission in given:
        replay = (await admin.get(f"/conversations/{conversation}/assignment")).json()
        assert replay["chance"] == pytest.approx(0.6 if submission == "old_v1" else 0.2)
    found = (await admin.get("/competitions/open/uniform")).json()
    assert (found["conversations"], found["unknown"]) == (len(given), 0)
    rows = {row["submission_id"]: row for row in found["rows"]}
    assert rows.keys() == set(NAMES)
    assert all(row["conversations"] == len(given) for row in rows.values())
    assert sum(row["rated"] for row in rows.values()) == len(given)
    assert (rows["mid_v1"]["observed"], rows["new_v1"]["observed"]) == (0.0, 1.0)
    assert rows["old_v1"]["ratio"] > rows["mid_v1"]["ratio"]
    assert rows["old_v1"]["low"] is None, "with so few users there is no interval"


async def test_without_a_seed_no_decision_is_known(world: Assigning) -> None:
    await world.begin(await world.http(Role.BACKEND), "a")
    found = (await (await world.http(Role.ADMIN)).get("/competitions/open/uniform")).json()
    assert (found["conversations"], found["rows"]) == (0, [])


async def test_only_an_admin_may_ask_about_an_existing_competition(
    world: Assigning,
) -> None:
    developer, admin = await world.http(Role.DEVELOPER), await world.http(Role.ADMIN)
    assert (await developer.get("/competitions/open/uniform")).status_code == 403
    answer = await admin.get("/competitions/nowhere/uniform")
    assert (answer.status_code, answer.json()["error"]) == (404, "competition_not_found")


async def test_looking_again_adds_what_is_new_and_no_more(
    world: Assigning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uniform, "AT_ONCE", 2)
    monkeypatch.setattr(uniform, "MOST_CONVERSATIONS", 5)
    await world.rule(assignment={"kind": "uniform", "seed": 7})
    http, admin = await world.http(Role.BACKEND, "app"), await world.http(Role.ADMIN)

    async def look() -> tuple[int, bool]:
        found = (await admin.get("/competitions/open/uniform")).json()
        return found["conversations"], found["is_whole"]

    for number in range(7):
        await world.begin(http, f"user-{number}")
    assert await look() == (5, False), "the oldest five of the last day"
    world.clock.advance(25 * 3_600)
    assert await look() == (5, False)
    assert await look() == (7, True), "the running sums have gone on"
    await world.begin(http, "late")
    assert await look() == (8, True)
    assert await look() == (8, True), "what began within the day is added on top, and not twice"
