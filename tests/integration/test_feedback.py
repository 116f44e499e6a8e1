"""Ratings: given once, read under pseudonyms, counted into the leaderboard."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.submissions import Status
from guanaco_server.database.database import Database
from tests.fixtures.world import World


class Rated(World):
    """A world in which users rate."""

    async def rate(
        self, http: httpx.AsyncClient, user: str, thumbs_up: bool, messages: int = 1
    ) -> str:
        conversation = await self.open(http, user)
        for number in range(messages):
            await http.post(
                f"/conversations/{conversation}/messages", json={"content": f"Hello {number}"}
            )
        body = {"thumbs_up": thumbs_up, "text": f"said {user}"}
        answer = await http.post(f"/conversations/{conversation}/feedback", json=body)
        assert answer.status_code == 201, answer.text
        self.clock.advance(1)
        await self.routing.refresh()
        return conversation


@pytest.fixture
async def world(database: Database) -> Rated:
    world = Rated(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    return world


@pytest.mark.both_databases
async def test_a_conversation_is_rated_once_also_when_two_race(world: Rated) -> None:
    http = await world.http(Role.BACKEND)
    conversation = await world.open(http)
    early = await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
    assert (early.status_code, early.json()["error"]) == (409, "nothing_to_rate")
    await world.greet(http, conversation)
    answers = await asyncio.gather(
        *(
            http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
            for _ in range(2)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    again = await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": False})
    assert (again.status_code, again.json()["error"]) == (409, "already_rated")


@pytest.mark.both_databases
async def test_the_cursor_gives_only_what_is_new(world: Rated) -> None:
    http = await world.http(Role.BACKEND)
    developer = await world.http(Role.DEVELOPER, "ada")
    for number in range(3):
        await world.rate(http, f"user-{number}", True)
    path = "/submissions/acme-tiny_v1/feedback"
    first = (await developer.get(path, params={"limit": 2})).json()
    assert [item["text"] for item in first["items"]] == ["said user-0", "said user-1"]
    second = (await developer.get(path, params={"cursor": first["next_cursor"]})).json()
    assert [item["text"] for item in second["items"]] == ["said user-2"]
    end = (await developer.get(path, params={"cursor": second["next_cursor"]})).json()
    assert end == {"items": [], "next_cursor": None}
    await world.rate(http, "user-new", False)
    new = (await developer.get(path, params={"cursor": second["next_cursor"]})).json()
    assert [item["text"] for item in new["items"]] == ["said user-new"]


FOREIGN_CURSORS: list[str] = [
    "nonsense",
    "é",
    *(
        base64.urlsafe_b64encode(text.encode()).decode()
        for text in (
            "2026-01-01 fb",
            "0001-01-01T00:00:00+14:00 before time",
            "9999-12-31T23:59:59-14:00 after time",
            "2026-01-01T00:00:00+00:00 fb\0",
        )
    ),
]


async def test_a_cursor_that_is_none_of_ours_is_refused(
    world: Rated, subtests: pytest.Subtests
) -> None:
    developer = await world.http(Role.DEVELOPER, "ada")
    for cursor in FOREIGN_CURSORS:
        with subtests.test(cursor=cursor):
            answer = await developer.get(
                "/submissions/acme-tiny_v1/feedback", params={"cursor": cursor}
            )
            assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


@pytest.mark.slow
async def test_no_raw_user_id_reaches_a_developer(world: Rated) -> None:
    http = await world.http(Role.BACKEND)
    developer = await world.http(Role.DEVELOPER, "ada")
    for user in ("alice@example.org", "alice@example.org", "bob"):
        conversation = await world.open(http, user)
        await world.greet(http, conversation)
        await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
    path = "/submissions/acme-tiny_v1/feedback"
    page = await developer.get(path)
    lines = await developer.get(path, headers={"Accept": "application/x-ndjson"})
    assert "alice" not in page.text + lines.text
    users = [json.loads(line)["user"] for line in lines.text.splitlines()]
    assert users == [item["user"] for item in page.json()["items"]]
    assert len(set(users)) == 2


async def test_another_developers_feedback_is_not_found(world: Rated) -> None:
    other = await world.http(Role.DEVELOPER, "bob")
    for part in ("feedback", "metrics", "stress", "events"):
        answer = await other.get(f"/submissions/acme-tiny_v1/{part}")
        assert (answer.status_code, answer.json()["error"]) == (404, "submission_not_found")


async def test_a_user_has_one_vote_and_the_latest_counts(world: Rated) -> None:
    http = await world.http(Role.BACKEND)
    await world.rate(http, "alice", True)
    await world.rate(http, "alice", False, messages=3)
    await world.rate(http, "bob", True)
    developer = await world.http(Role.DEVELOPER, "ada")
    await world.scores.loop.run_once()
    metrics = (await developer.get("/submissions/acme-tiny_v1/metrics")).json()
    assert (metrics["thumbs_up"], metrics["thumbs_down"], metrics["feedback_count"]) == (1, 1, 3)
    assert metrics["mean_conversation_length"] == pytest.approx((2 + 6 + 2) / 3)
    assert metrics["conversation_count"] == 3


async def test_the_leaderboard_is_public_and_ranks_by_the_lower_bound(database: Database) -> None:
    world = Rated(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    http = await world.http(Role.BACKEND)
    await world.publish(ada, "few_v1")
    for number in range(2):
        await world.rate(http, f"few-{number}", True)
    await world.publish(ada, "many_v1")
    world.deployments.note_replicas("few_v1", ())
    for number in range(12):
        await world.rate(http, f"many-{number}", number > 0)
    await world.publish(ada, "new_v1")
    await world.publish(ada, "failed_v1", Status.FAILED)

    await world.scores.loop.run_once()
    rows = (await world.http_with({}).get("/leaderboard")).json()["rows"]

    assert [(row["submission_id"], row["rank"]) for row in rows] == [
        ("many_v1", 1),
        ("few_v1", 1),  # two of two may be as good as eleven of twelve
        ("new_v1", None),
    ]
    assert 0 < rows[0]["interval_low"] < 11 / 12 < rows[0]["interval_high"] < 1
    assert rows[2]["thumbs_up_ratio"] is None
