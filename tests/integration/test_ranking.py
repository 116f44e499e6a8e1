"""Competitions' rankings, flags, seasons and histories over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco.errors import TooManyRatings
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS, least_burst
from guanaco_server.leaderboard.ranking import queries as ranking_queries
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.statistics.votes import VoteCount
from tests.fixtures.rating import rate, rate_all, say
from tests.fixtures.world import World


class Season(World):
    """A world with four submissions of two developers, and a competition."""

    backend: Account
    admin: httpx.AsyncClient

    async def begin(self, ranking: str = "bradley_terry") -> Season:
        for number in range(4):
            developer = await self.account(Role.DEVELOPER, f"developer-{number % 2}")
            await self.publish(developer, f"model-{number}_v1")
        self.backend = await self.account(Role.BACKEND)
        self.admin = await self.http(Role.ADMIN)
        body = {
            "name": "Autumn",
            "starts_at": self.clock.now().isoformat(),
            "ranking": ranking,
        }
        assert (await self.admin.put("/competitions/autumn", json=body)).status_code == 200
        return self

    async def votes(self, user: str, ups: dict[int, bool], competition: str = "autumn") -> None:
        await self.all_votes([user], lambda _: ups, competition)

    async def all_votes(
        self,
        users: Iterable[str],
        ups: Callable[[int], dict[int, bool]],
        competition: str = "autumn",
    ) -> None:
        """``ups``: what each user, by their place, thinks of which models."""
        votes = (
            (f"model-{number}_v1", user, thumbs_up)
            for place, user in enumerate(users)
            for number, thumbs_up in ups(place).items()
        )
        await rate_all(self, self.backend, votes, competition=competition)

    async def ups(self) -> int:
        """The thumbs up of the first model on the open board."""
        ups = {row["submission_id"]: row["thumbs_up"] for row in await self.rows("open")}
        return int(ups["model-0_v1"])

    async def rows(self, competition: str = "autumn", **params: str) -> list[dict[str, Any]]:
        await self.scores.loop.run_once()
        answer = await self.http_with({}).get(
            "/leaderboard", params={"competition": competition} | params
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["rows"]
        return found


def users(count: int) -> list[str]:
    return [f"user-{number}" for number in range(count)]


@pytest.fixture
async def world(database: Database) -> Season:
    return await Season(database).begin()


async def test_bradley_terry_ranks_who_is_liked_where_others_are_not(world: Season) -> None:
    await world.all_votes(users(30), lambda number: {0: True, 1: number % 2 == 0, 2: False})
    found = await world.rows()
    assert [(row["submission_id"], row["rank"]) for row in found] == [
        ("model-0_v1", 1),
        (
            "model-1_v1",
            1,
        ),  # thirty users do not settle whether half or all is better, for who looks all day
        ("model-2_v1", 2),
        ("model-3_v1", None),
    ]
    assert found[0]["score"] > 1000 > found[2]["score"]
    assert found[0]["score_low"] < found[0]["score"] < found[0]["score_high"]
    assert (await world.rows("open"))[0]["rank"] is None


async def test_another_rule_ranks_the_same_votes_anew(world: Season) -> None:
    await world.all_votes(users(10), lambda _: {0: True, 1: False})
    assert (await world.rows())[0]["score"] > 1000
    rules = (await world.admin.get("/competitions/autumn")).json()
    del rules["id"], rules["frozen_at"]
    await world.admin.put("/competitions/autumn", json=rules | {"ranking": "combined"})
    assert 0.5 < (await world.rows())[0]["score"] < 1


async def test_a_rule_that_compares_users_ranks_votes_from_before_it(database: Database) -> None:
    world = await Season(database).begin("thumbs_up")
    await world.all_votes(users(10), lambda _: {0: True, 1: False})
    assert 0.5 < (await world.rows())[0]["score"] <= 1
    rules = (await world.admin.get("/competitions/autumn")).json()
    del rules["id"], rules["frozen_at"]
    await world.admin.put("/competitions/autumn", json=rules | {"ranking": "bradley_terry"})
    assert (await world.rows())[0]["score"] > 1000


async def test_the_leaderboard_sorts_by_what_is_asked_for(world: Season) -> None:
    await world.votes("alice", {0: False, 1: True, 2: True})
    await world.votes("bob", {2: True})
    by_thumbs = await world.rows(sort="thumbs_up")
    assert [row["submission_id"] for row in by_thumbs[:2]] == ["model-2_v1", "model-1_v1"]
    newest = await world.rows(sort="newest")
    assert newest[0]["submission_id"] == "model-3_v1"
    answer = await world.http_with({}).get("/leaderboard", params={"sort": "luck"})
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


async def test_votes_after_the_window_do_not_count(world: Season) -> None:
    await world.votes("alice", {0: True, 1: False})
    ends_at = world.clock.now()
    await world.votes("bob", {0: True, 1: False})
    assert (await world.rows())[0]["thumbs_up"] == 2
    rules = (await world.admin.get("/competitions/autumn")).json()
    del rules["id"], rules["frozen_at"]
    await world.admin.put("/competitions/autumn", json=rules | {"ends_at": ends_at.isoformat()})
    await world.votes("carol", {0: True})
    assert (await world.rows())[0]["thumbs_up"] == 1


@pytest.mark.both_databases
async def test_frozen_season_recomputes_equally_and_takes_no_more(world: Season) -> None:
    await world.all_votes(
        users(12), lambda number: {0: True, 1: number % 3 == 0, 2: number % 2 == 0}
    )
    assert (await world.admin.get("/competitions/autumn/season")).status_code == 404
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    standings = json.loads(frozen["ranking"])["standings"]
    assert standings[0]["submission_id"] == "model-0_v1"
    assert standings[0]["thumbs_up"] == 12
    await world.votes("late", {0: False, 1: True})
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert (check["is_same"], check["recomputed_sha256"]) == (True, frozen["sha256"])
    assert (await world.admin.post("/competitions/autumn/freeze")).json() == frozen
    assert (await world.http_with({}).get("/competitions/autumn/season")).json() == frozen


async def test_season_that_differs_says_what_was_taken_away(world: Season) -> None:
    await world.votes("alice", {0: True, 1: False})
    await world.admin.post("/competitions/autumn/freeze")
    assert (await world.admin.post("/competitions/autumn/recompute")).json()["reasons"] == []
    async with world.database.write() as session:
        await session.execute(text("UPDATE feedback SET thumbs_up = NOT thumbs_up"))
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert (check["is_same"], check["reasons"]) == (False, [])
    async with world.database.read() as session:
        conversation = await session.scalar(text("SELECT min(id) FROM conversations"))
    backend = await world.http(Role.BACKEND)
    assert (await backend.delete(f"/conversations/{conversation}")).status_code < 300
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    (reason,) = check["reasons"]
    assert "1 erasure of a user or deletion of a conversation came after the freeze" in reason


@pytest.mark.both_databases
async def test_new_field_of_a_competition_changes_no_season(world: Season) -> None:
    await world.votes("alice", {0: True, 1: False})
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    async with world.database.write() as session:  # as the next version stores it
        rules = await session.scalar(text("SELECT rules FROM competitions WHERE id = 'autumn'"))
        stored = rules if isinstance(rules, dict) else json.loads(rules)
        stored |= {"motto": "Nothing ventured"}
        stored["entry"] |= {"region": "eu"}
        await session.execute(
            text("UPDATE competitions SET rules = :rules WHERE id = 'autumn'"),
            {"rules": json.dumps(stored)},
        )
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert (check["is_same"], check["recomputed_sha256"]) == (True, frozen["sha256"])


async def test_season_of_the_next_version_is_readable_and_not_recomputed(world: Season) -> None:
    await world.votes("alice", {0: True, 1: False})
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    document = json.loads(frozen["ranking"]) | {"schema": 99}
    document["competition"]["ranking"] = "plackett_luce"
    for line in document["standings"]:
        line["tier"] = "gold"
    later = json.dumps(document)
    async with world.database.write() as session:
        await session.execute(
            text("UPDATE seasons SET ranking = :ranking"), {"ranking": later.encode()}
        )
    everybody = world.http_with({})
    assert (await everybody.get("/competitions/autumn/season")).json()["ranking"] == later
    shown = {row["submission_id"]: row["rank"] for row in await world.rows() if row["rank"]}
    assert shown == {line["submission_id"]: line["rank"] for line in document["standings"]}
    answer = await world.admin.post("/competitions/autumn/recompute")
    assert (answer.status_code, answer.json()["error"]) == (409, "newer_version_needed")


async def test_a_season_whose_ratings_were_changed_is_found_out(world: Season) -> None:
    await world.votes("alice", {0: True, 1: False})
    await world.admin.post("/competitions/autumn/freeze")
    async with world.database.write() as session:
        await session.execute(text("UPDATE feedback SET thumbs_up = NOT thumbs_up"))
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert check["is_same"] is False


async def test_only_an_admin_freezes_and_the_open_competition_never_ends(world: Season) -> None:
    developer = await world.http(Role.DEVELOPER)
    assert (await developer.post("/competitions/autumn/freeze")).status_code == 403
    answer = await world.admin.post("/competitions/open/freeze")
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    answer = await world.admin.post("/competitions/winter/freeze")
    assert answer.json()["error"] == "competition_not_found"
    now = world.clock.now()
    past, before = (now - timedelta(days=days) for days in (1, 2))
    coming = now + timedelta(days=1)
    for window in ({"starts_at": before, "ends_at": past}, {"starts_at": coming}):
        rules = {"name": "Open"} | {name: moment.isoformat() for name, moment in window.items()}
        answer = await world.admin.put("/competitions/open", json=rules)
        assert answer.status_code == 422
        assert "always runs" in answer.json()["detail"]


async def test_devoted_user_is_left_out_until_an_admin_allows_it(world: Season) -> None:
    await world.all_votes(["fan"] * DEVOTED_RATINGS, lambda _: {0: True}, "open")
    assert await world.ups() == 1, "one developer alone is rated"
    await world.votes("alice", {0: True, 1: False}, "open")
    assert await world.ups() == 1, "the fan is devoted now"
    flags = (await world.admin.get("/votes/flags")).json()
    assert len(flags) == DEVOTED_RATINGS
    assert {flag["rule"] for flag in flags} == {"devoted_user"}
    assert "fan" not in json.dumps(flags)
    allowed = await world.admin.post(f"/votes/{flags[0]['feedback_id']}/allow")
    assert allowed.json()[0]["allowed_by"] == "admin"
    assert await world.ups() == 2
    answer = await world.admin.post("/votes/fb_none/allow")
    assert (answer.status_code, answer.json()["error"]) == (404, "flag_not_found")


async def test_a_flag_is_lifted_when_its_rule_holds_no_more(world: Season) -> None:
    await world.all_votes(["fan"] * DEVOTED_RATINGS, lambda _: {0: True}, "open")
    await world.votes("eve", {1: False}, "open")
    assert await world.ups() == 0
    await world.votes("fan", {1: False}, "open")
    assert await world.ups() == 1
    flags = (await world.admin.get("/votes/flags", params={"submission": "model-0_v1"})).json()
    assert all(flag["lifted_at"] for flag in flags)


async def test_a_developers_own_chats_do_not_count(world: Season) -> None:
    world.backend = await world.account(Role.DEVELOPER, "developer-0")
    await world.votes("anybody", {0: True, 1: True}, "open")
    counted = {row["submission_id"]: row["thumbs_up"] for row in await world.rows("open")}
    assert (counted["model-0_v1"], counted["model-1_v1"]) == (0, 1)


@pytest.mark.both_databases
async def test_burst_is_left_out_including_votes_counted_before(world: Season) -> None:
    minute = world.clock.now().replace(second=0, microsecond=0) + timedelta(minutes=5)
    crowd = [("model-0_v1", user, True) for user in users(least_burst() + 1)]
    await rate_all(world, world.backend, crowd[:11], at=minute)
    assert (await world.rows("open"))[0]["thumbs_up"] == 11
    await rate_all(world, world.backend, crowd[11:], at=minute)
    await rate(world, world.backend, "model-0_v1", "alice", True, at=minute + timedelta(minutes=2))
    assert (await world.rows("open"))[0]["thumbs_up"] == 1


async def test_user_who_rates_inhumanly_fast_is_told_to_wait(world: Season) -> None:
    http = await world.http(Role.BACKEND)
    moment = world.clock.now()
    for _ in range(30):
        await rate(world, world.backend, "model-0_v1", "hasty", True, at=moment)
    world.clock.at = moment
    with pytest.raises(TooManyRatings):
        await rate(world, world.backend, "model-0_v1", "hasty", True, at=moment)
    conversation = await world.open(http, "hasty")
    await say(world, conversation, [(Sender.BOT, "Ahoy!")], seconds_apart=0)
    path = f"/conversations/{conversation}/feedback"
    answer = await http.post(path, json={"thumbs_up": True})
    assert (answer.status_code, answer.json()["error"]) == (429, "too_many_ratings")
    assert 50 <= int(answer.headers["retry-after"]) <= 60
    world.clock.advance(61)
    assert (await http.post(path, json={"thumbs_up": True})).status_code == 201


async def test_the_history_has_a_point_an_hour_and_the_present(world: Season) -> None:
    for hour in range(3):
        await world.votes(f"user-{hour}", {0: True}, "open")
        await world.rows("open")
        world.clock.advance(3_600)
    await world.votes("last", {0: False}, "open")
    await world.rows("open")
    answer = await world.http_with({}).get("/submissions/model-0_v1/score-history")
    points = answer.json()["points"]
    assert len(points) >= 4
    assert points == sorted(points, key=lambda point: point["at"])
    assert points[-1]["score"] == 0.75
    empty = await world.http_with({}).get("/submissions/model-3_v1/score-history")
    assert empty.json()["points"] == []
    unknown = await world.http_with({}).get("/submissions/nope/score-history")
    assert (unknown.status_code, unknown.json()["error"]) == (404, "submission_not_found")


@pytest.mark.both_databases
async def test_old_points_are_thinned_to_one_a_day(world: Season) -> None:
    await world.votes("alice", {0: True}, "open")
    for _ in range(30):
        await world.rows("open")
        world.clock.advance(3_600)
    world.clock.advance(9 * 86_400)
    await world.rows("open")
    points = (await world.http_with({}).get("/submissions/model-0_v1/score-history")).json()[
        "points"
    ]
    days = [point["at"][:10] for point in points]
    assert len(days) == len(set(days)) == 3


async def test_metrics_are_of_one_competition_or_of_all(world: Season) -> None:
    await world.votes("alice", {0: True})
    await world.votes("alice", {0: False}, "open")
    await world.scores.loop.run_once()
    developer = await world.http(Role.DEVELOPER, "developer-0")
    path = "/submissions/model-0_v1/metrics"
    found = (await developer.get(path)).json()
    assert (found["thumbs_up"], found["thumbs_down"]) == (1, 1)
    found = (await developer.get(path, params={"competition": "autumn"})).json()
    assert (found["thumbs_up"], found["thumbs_down"]) == (1, 0)
    assert await world.leaderboard.votes_by_competition() == {
        "autumn": {"model-0_v1": VoteCount(1, 0)},
        "open": {"model-0_v1": VoteCount(0, 1)},
    }


async def test_a_ranking_takes_over_batches_that_were_counted_meanwhile(world: Season) -> None:
    """The votes are read after a batch was counted, and before the ranking hears of it."""
    parts = world.database, world.clock, world.competitions, world.submissions
    publisher = StandingsPublisher(*parts)
    await world.votes("alice", {0: True, 1: False})
    await publisher.publish()
    first = await world.scores.counter.count_batch()
    await world.votes("alice", {1: True, 2: False})
    await world.votes("bob", {0: False, 2: True})
    second = await world.scores.counter.count_batch()
    await publisher.publish()  # reads the aggregates of both, and knows the votes of none
    publisher.follow(first)
    publisher.follow(second)
    await publisher.publish()
    async with world.database.read() as session:
        followed = list(await ranking_queries.of_competition(session, "autumn"))
    await StandingsPublisher(*parts).publish()
    async with world.database.read() as session:
        fresh = list(await ranking_queries.of_competition(session, "autumn"))
    assert [tuple(row) for row in followed] == [pytest.approx(tuple(row)) for row in fresh]
    assert {row[0] for row in fresh if row[1] is not None} == {f"model-{k}_v1" for k in range(3)}


@pytest.mark.both_databases
async def test_ratings_are_counted_and_ranked_side_by_side(world: Season) -> None:
    await world.scores.loop.start()
    try:
        for number in range(12):
            for model, thumbs_up in ((0, True), (1, number % 3 == 0)):
                name, user = f"model-{model}_v1", f"user-{number}"
                await rate(world, world.backend, name, user, thumbs_up, competition="autumn")
        async with asyncio.timeout(20):
            while (await shown(world)).get("model-0_v1") != 12:
                await asyncio.sleep(0.05)
    finally:
        await world.scores.loop.stop()
    ranks = {row["submission_id"]: row["rank"] for row in await world.rows()}
    assert ranks["model-0_v1"] == 1


async def shown(world: Season) -> dict[str, int]:
    board = await world.leaderboard.leaderboard("autumn")
    return {row.submission_id: row.thumbs_up for row in board.rows}
