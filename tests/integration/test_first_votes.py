"""Ranks, verdicts and intervals take a user's first vote on a submission; the shown ratio takes the latest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select, update

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.feedback.changes import MAX_CHANGES
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.tables import ScoreRow, VoteRow
from guanaco_server.statistics.votes import VoteCount
from tests.fixtures.rating import rate, rate_all
from tests.fixtures.web_client import browser
from tests.fixtures.world import BOT, World

ID = "acme-tiny_v1"


class Votes(World):
    backend: Account

    async def begin(self) -> Votes:
        await self.publish(await self.account(Role.DEVELOPER), ID)
        self.backend = await self.account(Role.BACKEND)
        return self

    async def rate(self, user: str, thumbs_up: bool) -> str:
        self.clock.advance(1)
        return await rate(self, self.backend, ID, user, thumbs_up)

    async def firsts(self) -> VoteCount:
        await self.scores.loop.run_once()
        return (await self.leaderboard.votes_by_competition())["open"][ID]

    async def row(self) -> dict[str, Any]:
        (row,) = (await self.http_with({}).get("/leaderboard")).json()["rows"]
        found: dict[str, Any] = row
        return found


@pytest.fixture
async def world(database: Database) -> Votes:
    return await Votes(database).begin()


async def test_later_ratings_move_the_shown_ratio_alone(world: Votes) -> None:
    for user, votes in (("ada", "+-"), ("bob", "-++"), ("eve", "+"), ("dan", "--")):
        for vote in votes:
            await world.rate(user, vote == "+")
    assert await world.firsts() == VoteCount(2, 2)
    row = await world.row()
    assert (row["thumbs_up"], row["thumbs_down"], row["score"]) == (2, 2, 0.5)
    await world.rate("eve", False)
    assert await world.firsts() == VoteCount(2, 2)
    row = await world.row()
    assert (row["thumbs_up"], row["thumbs_down"], row["score"]) == (1, 3, 0.5)
    for path, said in (("/", "50 % at first"), (f"/submissions/{ID}", "50 % by first votes")):
        page = (await browser(world).get(path)).text
        assert said in page.replace("\N{NARROW NO-BREAK SPACE}", " ")


async def test_users_who_rate_again_all_day_move_no_interval(world: Votes) -> None:
    crowd = [f"user-{number}" for number in range(12)]
    first = [(ID, user, number % 2 == 0) for number, user in enumerate(crowd)]
    await rate_all(world, world.backend, first)
    await world.scores.loop.run_once()
    before = await world.row()
    await rate_all(world, world.backend, [(ID, user, True) for user in crowd * 3])
    await world.scores.loop.run_once()
    after = await world.row()
    assert (after["score_low"], after["score_high"]) == (before["score_low"], before["score_high"])
    assert (after["thumbs_up"], before["thumbs_up"]) == (12, 6)


async def test_a_changed_rating_counts_as_it_was_given(world: Votes) -> None:
    http = await world.http(Role.BACKEND)
    await world.routing.refresh()
    conversation = await world.open(http, "ada")
    await world.greet(http, conversation)
    await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
    assert await world.firsts() == VoteCount(1, 0)
    for thumbs_up in (False, True, False):
        changed = await http.put(
            f"/conversations/{conversation}/feedback", json={"thumbs_up": thumbs_up}
        )
        assert changed.is_success, changed.text
    assert await world.firsts() == VoteCount(1, 0)
    assert (await world.row())["thumbs_down"] == 1


@pytest.mark.both_databases
async def test_a_first_vote_is_given_once_although_it_is_withdrawn(world: Votes) -> None:
    http = await world.http(Role.BACKEND)
    await world.routing.refresh()
    conversation = await world.open(http, "ada")
    await world.greet(http, conversation)
    path = f"/conversations/{conversation}/feedback"
    limit = MAX_CHANGES // 2
    for thumbs_up in [False] + [True] * (limit - 1):
        world.clock.advance(1)
        assert (await http.post(path, json={"thumbs_up": thumbs_up})).is_success
        if thumbs_up:
            assert (await http.put(path, json={"thumbs_up": False})).is_success
        else:
            assert await world.firsts() == VoteCount(0, 1)
            assert (await http.put(path, json={"thumbs_up": True})).is_success
        assert (await http.delete(path)).is_success
    assert await world.firsts() == VoteCount(0, 1), "the thumb as it was given first"
    row = await world.row()
    assert (row["thumbs_up"], row["thumbs_down"], row["score"]) == (0, 0, 0.0)
    before = await tally(world)
    async with world.database.write() as session:
        await world.scores.counter.recount(session, [ID])
    assert await world.firsts() == VoteCount(0, 1)
    assert await tally(world) == before
    world.clock.advance(1)
    assert (await http.post(path, json={"thumbs_up": True})).is_success
    assert await world.firsts() == VoteCount(0, 1)
    row = await world.row()
    assert (row["thumbs_up"], row["thumbs_down"], row["score"]) == (1, 0, 0.0)
    refused = await http.delete(path)
    assert refused.json()["error"] == "rating_settled", "20 changes of all its ratings"
    admin = await world.http(Role.ADMIN)
    assert (await admin.post("/users/erase", json={"user_id": "ada"})).is_success
    assert await world.firsts() == VoteCount(0, 0)
    assert "withdrawn_down" not in await tally(world)


async def test_a_season_has_the_first_votes_of_withdrawn_ratings(world: Votes) -> None:
    rules = {"name": "Cup", "starts_at": world.clock.now()}
    await world.competitions.put("cup", CompetitionRequest.model_validate(rules))
    http = await world.http(Role.BACKEND)
    await world.routing.refresh()
    await rate(world, world.backend, ID, "bob", True, competition="cup")
    body = {"user_id": "ada", "bot": BOT.model_dump(), "consent": True, "competition": "cup"}
    conversation = (await http.post("/conversations", json=body)).json()["conversation_id"]
    await world.greet(http, conversation)
    path = f"/conversations/{conversation}/feedback"
    assert (await http.post(path, json={"thumbs_up": False})).is_success
    assert (await http.delete(path)).is_success
    await world.scores.loop.run_once()
    board = (await world.leaderboard.votes_by_competition())["cup"][ID]
    admin = await world.http(Role.ADMIN)
    world.clock.advance(1)
    season = (await admin.post("/competitions/cup/freeze")).json()
    (line,) = json.loads(season["ranking"])["standings"]
    assert VoteCount(line["first_up"], line["first_down"]) == board == VoteCount(1, 1)
    assert (line["thumbs_up"], line["thumbs_down"]) == (1, 0)


@pytest.mark.both_databases
async def test_counting_from_nothing_gives_the_same(world: Votes) -> None:
    for user, votes in (("ada", "+-"), ("bob", "-+"), ("eve", "+-+")):
        for vote in votes:
            await world.rate(user, vote == "+")
    await world.scores.loop.run_once()
    before = await tally(world)
    async with world.database.write() as session:
        await world.scores.counter.recount(session, [ID])
    await world.scores.loop.run_once()
    assert await tally(world) == before
    assert before["turned_down"] == before["turned_up"] == 1


async def tally(world: Votes) -> dict[str, int]:
    async with world.database.read() as session:
        found: dict[str, int] = json.loads((await session.scalars(select(ScoreRow.tally))).one())
    return found


@pytest.mark.both_databases
async def test_a_vote_of_the_version_before_counts_as_its_latest(world: Votes) -> None:
    """The version before writes no first vote; its user is counted again with the next rating."""
    await world.rate("ada", True)
    await world.rate("ada", False)
    await world.scores.loop.run_once()
    async with world.database.write() as session:
        await queries.lock_counting(session)  # as the version before does
        await session.execute(update(VoteRow).values(first_up=None))
        await session.execute(
            update(ScoreRow).values(tally='{"down":1,"rated":2}', turned_down=0, turned_up=0)
        )
    assert await world.firsts() == VoteCount(0, 1)
    await world.rate("ada", False)
    assert await world.firsts() == VoteCount(1, 0)


async def test_a_season_names_its_schema_and_both_counts(world: Votes) -> None:
    """Schemas 1 to 3 rank by the latest votes, for ever."""
    rules = {"name": "Cup", "starts_at": world.clock.now()}
    await world.competitions.put("cup", CompetitionRequest.model_validate(rules))
    for vote in (True, False):
        world.clock.advance(1)
        await rate(world, world.backend, ID, "ada", vote, competition="cup")
    admin = await world.http(Role.ADMIN)
    world.clock.advance(1)
    season = (await admin.post("/competitions/cup/freeze")).json()
    document = json.loads(season["ranking"])
    (line,) = document["standings"]
    assert (document["schema"], line["score"]) == (7, "1.000000")
    assert (line["first_up"], line["first_down"]) == (1, 0)
    assert (line["thumbs_up"], line["thumbs_down"]) == (0, 1)
    again = (await admin.post("/competitions/cup/recompute")).json()
    assert again["is_same"], again
