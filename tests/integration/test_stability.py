"""Tests how few votes decide between neighbours, and votes that come from another kind of users: over HTTP and on the pages."""

from __future__ import annotations

import csv
import io

import pytest

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest, RankingRule
from guanaco.feedback import ErasureRequest
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard import stability
from guanaco_server.leaderboard.ranking.strengths.influence import RankedVotes
from guanaco_server.statistics.votes import VoteCount
from tests.fixtures.rating import rate, rate_all
from tests.fixtures.web import WebWorld

GOOD, BAD = "good_v1", "bad_v1"


class Board(WebWorld):
    """A good and a bad submission with thirty votes each, and one without votes."""

    backend: Account

    async def begin(self) -> Board:
        developer = await self.account(Role.DEVELOPER, "ada")
        for name in (GOOD, BAD, "silent_v1"):
            await self.publish(developer, name)
        self.backend = await self.account(Role.BACKEND, "app")
        votes = (
            (name, f"user-{number}", number < ups)
            for number in range(30)
            for name, ups in ((GOOD, 29), (BAD, 2))
        )
        await rate_all(self, self.backend, votes)
        await self.scores.loop.run_once()
        return self


@pytest.fixture
async def world(database: Database) -> Board:
    return await Board(database).begin()


async def test_the_board_says_how_few_votes_decide(world: Board) -> None:
    anyone = world.http_with({})
    answer = await anyone.get("/leaderboard/stability")
    assert answer.status_code == 200, answer.text
    (pair,) = answer.json()["pairs"]
    assert (pair["above"], pair["below"], pair["are_apart"]) == (GOOD, BAD, True)
    assert pair["is_fewest"]
    assert 1 < pair["votes"] < 30
    page = (await anyone.get(f"http://test/submissions/{BAD}")).text
    assert f"{GOOD} stands above {BAD}; without {pair['votes']} votes their intervals" in page
    rows = {row["submission_id"]: row for row in (await anyone.get("/leaderboard")).json()["rows"]}
    assert (rows[GOOD]["neighbour"], rows[BAD]["neighbour"]) == (None, pair)
    board = (await anyone.get("http://test/")).text
    assert "Votes that decide" in board
    assert f"without {pair['votes']} votes their intervals would meet" in board


@pytest.mark.parametrize("rule", [RankingRule.THUMBS_UP, RankingRule.BRADLEY_TERRY])
async def test_a_frozen_board_keeps_its_deciding_votes(world: Board, rule: RankingRule) -> None:
    opened = world.clock.now()
    await world.competitions.put(
        "spring", CompetitionRequest(name="Spring", starts_at=opened, ranking=rule)
    )
    votes = (
        (name, f"user-{number}", number < ups)
        for number in range(40)
        for name, ups in ((GOOD, 36), (BAD, 4 + number % 2))
    )
    await rate_all(world, world.backend, votes, competition="spring")
    await world.scores.loop.run_once()
    anyone, admin = world.http_with({}), await world.http(Role.ADMIN)
    running = (await anyone.get("/leaderboard/stability?competition=spring")).json()
    answer = await admin.post("/competitions/spring/freeze")
    assert answer.status_code == 200, answer.text
    assert (await anyone.get("/leaderboard/stability?competition=spring")).json()["pairs"] == []
    await world.scores.loop.run_once()
    for asked in ("", f"&submission={BAD}"):
        frozen = await anyone.get(f"/leaderboard/stability?competition=spring{asked}")
        assert frozen.json()["pairs"] == running["pairs"] != [], frozen.text
    rows = (await anyone.get("/leaderboard?competition=spring")).json()["rows"]
    row = next(one for one in rows if one["submission_id"] == BAD)
    assert row["neighbour"] == running["pairs"][0]
    assert "Votes that decide" in (await anyone.get("http://test/?competition=spring")).text
    missing = await anyone.get("/leaderboard/stability?competition=spring&submission=silent_v1")
    assert missing.status_code == 404
    text = (await anyone.get("http://test/leaderboard.csv?competition=spring")).text
    lines = {line["submission_id"]: line for line in csv.DictReader(io.StringIO(text))}
    assert lines[BAD]["neighbour"] == GOOD
    assert lines[BAD]["deciding_votes"] == str(row["neighbour"]["votes"] or "")
    assert lines[GOOD]["neighbour"] == ""


async def test_erasure_leaves_no_deciding_votes_of_another_order(world: Board) -> None:
    await world.competitions.put(
        "spring", CompetitionRequest(name="Spring", starts_at=world.clock.now())
    )
    votes = ((name, f"user-{n}", name == GOOD) for n in range(9) for name in (GOOD, BAD))
    await rate_all(world, world.backend, votes, competition="spring")
    admin = await world.http(Role.ADMIN)
    await admin.post("/competitions/spring/freeze")
    eraser = await world.account(Role.ADMIN, "eraser")
    for number in range(9):
        await world.erasures.erase(eraser, ErasureRequest(user_id=f"user-{number}"))
    await world.scores.loop.run_once()
    anyone = world.http_with({})
    assert (await anyone.get("/leaderboard/stability?competition=spring")).json()["pairs"] == []
    assert await world.platform.rooms.leaderboard.seasons.unweighed() == []


async def test_by_strengths_so_many_votes_do_it(world: Board) -> None:
    request = CompetitionRequest(
        name="Open", starts_at=world.clock.now(), ranking=RankingRule.BRADLEY_TERRY
    )
    request = request.model_copy(update={"starts_at": world.clock.now().replace(year=2000)})
    await world.competitions.put("open", request)
    anyone = world.http_with({})
    answer = await anyone.get("/leaderboard/stability", params={"submission": GOOD})
    assert answer.json()["pairs"] == [], "they were found by another rule"
    await world.scores.loop.run_once()
    answer = await anyone.get("/leaderboard/stability", params={"submission": GOOD})
    (pair,) = answer.json()["pairs"]
    assert (pair["above"], pair["is_fewest"], pair["votes"]) == (GOOD, False, None)
    page = (await anyone.get(f"http://test/submissions/{BAD}")).text
    assert "no 2,000 votes decide that" in page, "without all who prefer it, the two are equal"


async def test_rests_lie_between_the_pairs_of_a_large_board(
    world: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    counts = {f"m{number}_v1": VoteCount(90 - 20 * number, 10) for number in range(4)}
    monkeypatch.setattr(stability, "AT_ONCE", 1)
    monkeypatch.setattr(stability.asyncio, "sleep", rest)
    votes = RankedVotes(RankingRule.THUMBS_UP, counts, (), ())
    computed_s = await world.platform.rooms.leaderboard.stability.note("open", votes)
    monkeypatch.undo()
    assert len(rests) == 2, "three pairs"
    assert 0 < sum(rests) < stability.REST * computed_s
    pairs = (await world.http_with({}).get("/leaderboard/stability")).json()["pairs"]
    assert len(pairs) == 3


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"competition": "nowhere"}, 404, "competition_not_found"),
        ({"submission": "silent_v1"}, 404, "submission_not_found"),
        ({"submission": ""}, 422, "invalid_input"),
    ],
)
async def test_missing_board_or_rank_is_reported_as_missing(
    world: Board, params: dict[str, str], status: int, code: str
) -> None:
    answer = await world.http_with({}).get("/leaderboard/stability", params=params)
    assert (answer.status_code, answer.json()["error"]) == (status, code), answer.text


@pytest.mark.slow
async def test_ids_that_were_made_for_one_submission_are_noticed(world: Board) -> None:
    for number in range(14):
        for name in (GOOD, BAD):
            await rate(world, world.backend, name, f"{name}-{number}", number % 2 == 0)
    sybils = ((BAD, f"sybil-{number}", True) for number in range(40))
    await rate_all(world, world.backend, sybils)
    await world.scores.loop.run_once()
    admin = await world.http(Role.ADMIN)
    found = (await admin.get("/votes/patterns")).json()
    first = next(one for one in found if one["submission_id"] == BAD)
    assert (first["narrow_up"], first["narrow_down"]) == (47, 7)
    assert (first["broad_up"], first["broad_down"]) == (2, 28)
    assert first["is_suspicious"]
    assert first["excess"] > 0
    assert (await admin.get("/votes/patterns", params={"competition": "no"})).status_code == 404
    developer = await world.http(Role.DEVELOPER)
    assert (await developer.get("/votes/patterns")).status_code == 403
