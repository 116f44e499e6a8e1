"""A competition's board and its season say the same, whenever ratings come and whatever rules leave out."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.submissions import Status
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS, least_burst
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.rating import rate, rate_all
from tests.fixtures.world import World

MODELS = ("one_v1", "two_v1", "three_v1")
CUP = "cup"


class Cup(World):
    """Three submissions of two developers, two backends, and a competition."""

    backends: list[Account]
    admin: httpx.AsyncClient
    starts_at: datetime

    async def begin(self) -> Cup:
        for number, submission_id in enumerate(MODELS):
            developer = await self.account(Role.DEVELOPER, f"developer-{number % 2}")
            await self.publish(developer, submission_id, parameter_count=8_000_000_000)
        self.backends = [await self.account(Role.BACKEND, f"app-{number}") for number in range(2)]
        self.admin = await self.http(Role.ADMIN)
        self.starts_at = self.clock.now()
        await self.set_rules()
        return self

    async def set_rules(self, **rules: Any) -> None:
        body = {"name": "Cup", "starts_at": self.starts_at.isoformat()} | rules
        answer = await self.admin.put(f"/competitions/{CUP}", json=body)
        assert answer.status_code == 200, answer.text

    async def rate(
        self, user: str, thumbs_up: bool, model: str = "one_v1", backend: int = 0
    ) -> None:
        await rate(self, self.backends[backend], model, user, thumbs_up, competition=CUP)

    async def rate_often(self, user: str, times: int) -> None:
        votes = [("one_v1", user, True)] * times
        await rate_all(self, self.backends[0], votes, competition=CUP)

    async def rate_rival(self) -> None:
        """Rate another developer's submission: where one developer alone is rated, nobody is devoted."""
        await self.rate("eve", False, "two_v1")

    async def count_all(self) -> None:
        while not (await self.scores.counter.count_batch()).is_all:
            pass
        await self.scores.loop.run_once()

    async def counted(self) -> dict[str, VoteCount]:
        """Count from the tallies that are kept step by step, without those that nobody voted on."""
        await self.count_all()
        found = (await self.leaderboard.votes_by_competition()).get(CUP, {})
        return {one: votes for one, votes in found.items() if votes.up + votes.down}

    async def board(self) -> dict[str, VoteCount]:
        answer = await self.http_with({}).get("/leaderboard", params={"competition": CUP})
        return {
            row["submission_id"]: VoteCount(row["thumbs_up"], row["thumbs_down"])
            for row in answer.json()["rows"]
            if row["rank"] is not None
        }

    async def freeze(self) -> dict[str, VoteCount]:
        """The season's votes."""
        frozen = (await self.admin.post(f"/competitions/{CUP}/freeze")).json()
        return {
            one["submission_id"]: VoteCount(one["thumbs_up"], one["thumbs_down"])
            for one in json.loads(frozen["ranking"])["standings"]
        }


@pytest.fixture
async def world(database: Database) -> Cup:
    return await Cup(database).begin()


@pytest.mark.slow
async def test_ratings_after_the_end_make_nobody_devoted(world: Cup) -> None:
    await world.rate_rival()
    await world.rate_often("fan", DEVOTED_RATINGS - 5)
    await world.rate("bob", False)
    expected = {"one_v1": VoteCount(1, 1), "two_v1": VoteCount(0, 1)}
    assert await world.counted() == expected
    await world.set_rules(ends_at=world.clock.now().isoformat())
    await world.rate_often("fan", 10)
    assert await world.counted() == await world.board() == expected
    assert await world.freeze() == expected
    assert await world.counted() == await world.board() == expected


async def test_ratings_before_the_start_are_in_no_burst(world: Cup) -> None:
    minute = world.clock.now().replace(second=0, microsecond=0) + timedelta(minutes=5)
    world.starts_at = minute + timedelta(seconds=30)
    await world.set_rules()
    votes = [("one_v1", f"u{number}", True) for number in range(least_burst() + 1)]
    for second, some in ((29, votes[:20]), (31, votes[20:])):
        at = minute + timedelta(seconds=second)
        await rate_all(world, world.backends[0], some, competition=CUP, at=at)
    expected = {"one_v1": VoteCount(least_burst() + 1 - 20, 0)}
    assert await world.counted() == await world.board() == expected
    assert await world.freeze() == expected


@pytest.mark.both_databases
async def test_moved_window_lifts_the_flags_of_what_it_excludes(world: Cup) -> None:
    await world.rate_rival()
    rival = {"two_v1": VoteCount(0, 1)}
    await world.rate_often("fan", DEVOTED_RATINGS - 1)
    end = world.clock.now()
    await world.rate("fan", True)
    assert await world.counted() == rival
    await world.set_rules(ends_at=end.isoformat())
    assert await world.counted() == {"one_v1": VoteCount(1, 0)} | rival
    flags = (await world.admin.get("/votes/flags", params={"competition": CUP})).json()
    assert len(flags) == DEVOTED_RATINGS
    assert all(flag["lifted_at"] for flag in flags)


@pytest.mark.slow
async def test_season_ranks_what_was_counted_step_by_step(world: Cup) -> None:
    rng = random.Random(5)
    acts = ["rate", "fan", "count", "pause"] * 12 + ["stuff", "rush"]
    rng.shuffle(acts)
    for step, act in enumerate(acts):
        match act:
            case "rate":
                model, user = rng.choice(MODELS), f"u{rng.randrange(6)}"
                await world.rate(user, rng.random() < 0.6, model, rng.randrange(2))
            case "fan":
                fan = f"fan-{rng.randrange(3)}"
                await world.rate_often(fan, rng.randrange(2, 12))
            case "rush" | "stuff":
                await crowd(world, rng, MODELS[: 2 if act == "rush" else 1])
            case "count":
                await world.scores.counter.count_batch()
            case "pause":
                world.clock.advance(rng.randrange(20, 600))
        if step == 2 * len(acts) // 3:
            await world.set_rules(ends_at=world.clock.now().isoformat())
    live = await world.counted()
    assert await world.board() == live
    season = await world.freeze()
    assert season == live
    assert await world.counted() == await world.board() == season
    flags = (await world.admin.get("/votes/flags", params={"limit": 1_000})).json()
    assert {flag["rule"] for flag in flags} == {"burst", "devoted_user"}


async def crowd(world: Cup, rng: random.Random, models: tuple[str, ...]) -> None:
    """So many in one minute that it may be a burst, unless the others are rated as often."""
    minute = world.clock.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
    for number in range((least_burst() + 2) * len(models)):
        model, user = models[number % len(models)], f"crowd-{rng.randrange(10_000)}"
        at = minute + timedelta(seconds=rng.randrange(60))
        await rate(world, world.backends[0], model, user, True, competition=CUP, at=at)
    world.clock.at = minute + timedelta(minutes=1)


async def test_frozen_board_stays_despite_allowances_and_leaving_users(
    world: Cup,
) -> None:
    await world.rate_rival()
    rival = {"two_v1": VoteCount(0, 1)}
    await world.rate_often("fan", DEVOTED_RATINGS)
    for user in ("alice", "bob"):
        await world.rate(user, user == "bob")
    await world.counted()
    season = await world.freeze()
    assert season == {"one_v1": VoteCount(1, 1)} | rival
    flags = (await world.admin.get("/votes/flags")).json()
    await world.admin.post(f"/votes/{flags[0]['feedback_id']}/allow")
    await world.admin.post("/users/erase", json={"user_id": "alice"})
    assert await world.counted() == {"one_v1": VoteCount(2, 0)} | rival
    assert await world.board() == season
    rows = (await world.http_with({}).get("/leaderboard", params={"competition": CUP})).json()
    (first,) = [row for row in rows["rows"] if row["submission_id"] == "one_v1"]
    assert (first["rank"], first["thumbs_up_ratio"]) == (1, 0.5)
    assert first["interval_low"] < 0.5 < first["interval_high"]
    assert [row["rank"] for row in rows["rows"]] == [1, 1, None]


async def test_a_board_lists_who_is_admitted_and_who_is_rated(world: Cup) -> None:
    small = await world.account(Role.DEVELOPER, "small")
    await world.publish(small, "small_v1", parameter_count=500_000)
    await world.set_rules(entry={"max_parameters": 1_000_000})
    await world.rate("alice", True, "two_v1")  # before the rule was made, say
    await world.count_all()
    assert await listed(world) == {"small_v1", "two_v1"}
    assert await listed(world, "open") == {*MODELS, "small_v1"}


async def test_older_submission_is_listed_when_the_newer_has_ended(
    world: Cup,
) -> None:
    await world.set_rules(entry={"per_developer": 1})
    assert await listed(world) == {"two_v1", "three_v1"}
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, "three_v1")
        assert row is not None
        row.status = Status.TORN_DOWN
    assert await listed(world) == {"one_v1", "two_v1", "three_v1"}


async def listed(world: Cup, competition: str = CUP) -> set[str]:
    answer = await world.http_with({}).get("/leaderboard", params={"competition": competition})
    return {row["submission_id"] for row in answer.json()["rows"]}
