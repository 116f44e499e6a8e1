"""Tests the leaderboard's verdict over HTTP, on the pages and in the command line's words."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco.competitions import AssignmentRule, CompetitionRequest, EntryRule, RankingRule
from guanaco.submissions import EventKind, Status
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.flags.rules import least_burst
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.rating import rate, rate_all
from tests.fixtures.web import WebWorld

GOOD, NEAR, BAD, SILENT = "good_v1", "near_v1", "bad_v1", "silent_v1"


class Board(WebWorld):
    """Three submissions with sixty votes each, and one without votes."""

    backend: Account
    ada: Account

    async def begin(self) -> Board:
        self.ada = await self.account(Role.DEVELOPER, "ada")
        for name in (GOOD, NEAR, BAD, SILENT):
            await self.publish(self.ada, name)
        self.backend = await self.account(Role.BACKEND, "app")
        votes = (
            (name, f"user-{number}", number < ups)
            for number in range(60)
            for name, ups in ((GOOD, 55), (NEAR, 50), (BAD, 6))
        )
        await rate_all(self, self.backend, votes)
        await self.scores.loop.run_once()
        return self

    async def withdraw(self, name: str) -> None:
        await self.submissions.teardown(self.ada, name)
        self.clock.advance(60)

    async def note_deployed(self, *names: str) -> None:
        """Write the event that the pipeline writes when it publishes."""
        async with self.database.write() as session:
            for name in names:
                await lifecycle.append_event(
                    session,
                    name,
                    EventKind.STATUS,
                    "Status is now deployed.",
                    at=self.clock.now(),
                    data={"status": Status.DEPLOYED},
                )

    async def verdict(self) -> dict[str, Any]:
        answer = await self.http_with({}).get("/leaderboard/verdict")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def rule(self, **fields: object) -> None:
        request = CompetitionRequest.model_validate(
            {"name": "Open", "starts_at": "2000-01-01T00:00:00Z"} | fields
        )
        await self.competitions.put("open", request)
        await self.scores.loop.run_once()


@pytest.fixture
async def world(database: Database) -> Board:
    return await Board(database).begin()


async def test_the_verdict_says_what_is_settled_and_what_is_open(world: Board) -> None:
    answer = await world.http_with({}).get("/leaderboard/verdict")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["leader"], found["within"], found["is_decided"]) == (GOOD, 0.05, False)
    near, bad, silent = found["pairs"]
    assert (near["submission_id"], near["state"]) == (NEAR, "open")
    assert near["votes"] > 50
    assert near["votes_low"] < near["votes"]
    assert (bad["submission_id"], bad["state"], bad["votes"]) == (BAD, "better", None)
    assert (silent["submission_id"], silent["state"], silent["votes"]) == (SILENT, "open", None)
    assert 0.5 < found["chance"] < 1
    assert found["prior_submissions"] == 0


async def test_a_wider_margin_settles_it_at_once(world: Board) -> None:
    await world.withdraw(SILENT)
    await world.http_with({}).get("/leaderboard/verdict")
    await world.rule(assignment=AssignmentRule(within=0.4).model_dump())
    found = (await world.http_with({}).get("/leaderboard/verdict")).json()
    assert (found["within"], found["is_decided"]) == (0.4, True)
    assert [pair["state"] for pair in found["pairs"]] == ["within", "better"]


async def test_a_withdrawn_one_holds_up_no_verdict(world: Board) -> None:
    await world.withdraw(SILENT)
    await world.rule(assignment=AssignmentRule(within=0.02).model_dump())
    await rate(world, world.backend, BAD, "late", False)
    for number in range(4):
        await rate(world, world.backend, SILENT, f"early-{number}", True)
    await world.withdraw(NEAR)
    await world.scores.loop.run_once()
    found = await world.verdict()
    states = {
        pair["submission_id"]: (pair["state"], pair["is_withdrawn"]) for pair in found["pairs"]
    }
    assert states == {NEAR: ("open", True), SILENT: ("open", True), BAD: ("better", False)}
    assert (found["leader"], found["is_decided"], found["is_leader_withdrawn"]) == (
        GOOD,
        True,
        False,
    )


async def test_a_withdrawn_one_leads_only_where_nobody_is_left(world: Board) -> None:
    await world.withdraw(GOOD)
    found = await world.verdict()
    assert (found["leader"], found["is_leader_withdrawn"]) == (NEAR, False)
    pair = found["pairs"][0]
    assert (pair["submission_id"], pair["state"], pair["is_withdrawn"]) == (GOOD, "open", True)
    for name in (NEAR, BAD, SILENT):
        await world.withdraw(name)
    found = await world.verdict()
    assert (found["leader"], found["is_leader_withdrawn"]) == (GOOD, True)


@pytest.mark.both_databases
@pytest.mark.parametrize("is_frozen", [True, False])
async def test_nothing_after_its_end_changes_verdict_and_board(
    world: Board, is_frozen: bool
) -> None:
    await world.note_deployed(GOOD, NEAR, BAD, SILENT)
    await world.withdraw(SILENT)
    request = CompetitionRequest(
        name="Winter",
        starts_at=world.clock.now(),
        ends_at=world.clock.now() + timedelta(days=1),
        entry=EntryRule(per_developer=3),
        assignment=AssignmentRule(within=0.4),
    )
    await world.competitions.put("winter", request)
    ups = {GOOD: 36, NEAR: 30, BAD: 2}
    votes = ((name, f"user-{n}", n < ups[name]) for n in range(40) for name in ups)
    await rate_all(world, world.backend, votes, competition="winter")
    anyone = world.http_with({})

    async def shown() -> tuple[dict[str, Any], list[str]]:
        await world.scores.loop.run_once()
        world.clock.advance(60)
        verdict = (await anyone.get("/leaderboard/verdict?competition=winter")).json()
        rows = (await anyone.get("/leaderboard?competition=winter")).json()["rows"]
        return verdict | {"at": None}, [row["submission_id"] for row in rows]

    if is_frozen:
        await (await world.http(Role.ADMIN)).post("/competitions/winter/freeze")
    else:
        world.clock.advance(2 * 86_400)
    before = await shown()
    assert (before[0]["leader"], before[0]["is_decided"]) == (GOOD, True)
    assert before[1][:3] == [GOOD, NEAR, BAD]
    for name in ("fourth_v1", "fifth_v1"):
        await world.publish(world.ada, name)
    await world.withdraw(GOOD)
    assert await shown() == before


@pytest.mark.both_databases
async def test_what_was_settled_once_stays_said(world: Board) -> None:
    await world.withdraw(SILENT)
    await world.rule(assignment=AssignmentRule(within=0.4).model_dump())
    settled = await world.verdict()
    assert (settled["is_decided"], settled["settled_leader"]) == (True, GOOD)
    assert settled["settled_at"] is not None
    await world.publish(world.ada, "newcomer_v1")
    world.clock.advance(60)
    found = await world.verdict()
    assert (found["is_decided"], found["pairs"][-1]["state"]) == (False, "open")
    assert (found["settled_at"], found["settled_leader"]) == (settled["settled_at"], GOOD)
    await world.rule(assignment=AssignmentRule(within=0.3).model_dump())
    assert (await world.verdict())["settled_at"] is None, "another margin is another claim"


@pytest.mark.parametrize("rule", [RankingRule.BRADLEY_TERRY, RankingRule.COMBINED])
async def test_by_strengths_the_intervals_say_it(world: Board, rule: RankingRule) -> None:
    await world.rule(ranking=rule.value)
    found = (await world.http_with({}).get("/leaderboard/verdict")).json()
    assert (found["leader"], found["chance"]) == (GOOD, None)
    assert [pair["submission_id"] for pair in found["pairs"]] == [NEAR, BAD, SILENT]
    assert found["pairs"][0]["state"] == "open"
    assert found["pairs"][0]["votes"] is None


async def test_empty_board_has_no_verdict_and_missing_board_is_404(world: Board) -> None:
    await world.competitions.put(
        "autumn",
        CompetitionRequest.model_validate({"name": "Autumn", "starts_at": "2000-01-01T00:00:00Z"}),
    )
    anyone = world.http_with({})
    found = (await anyone.get("/leaderboard/verdict", params={"competition": "autumn"})).json()
    assert (found["leader"], found["is_decided"], found["pairs"]) == (None, False, [])
    missing = await anyone.get("/leaderboard/verdict", params={"competition": "nowhere"})
    assert (missing.status_code, missing.json()["error"]) == (404, "competition_not_found")


@pytest.mark.both_databases
@pytest.mark.slow
async def test_past_seasons_are_the_prior(world: Board) -> None:
    developer = await world.account(Role.DEVELOPER, "grace")
    names = [f"old{at}_v1" for at in range(10)]
    await world.rule(ends_at=None)
    await world.competitions.put(
        "spring",
        CompetitionRequest.model_validate({"name": "Spring", "starts_at": "2000-01-01T00:00:00Z"}),
    )
    for at, name in enumerate(names):
        await world.publish(developer, name)
        for number in range(20):
            await rate(
                world,
                world.backend,
                name,
                f"spring-{number}",
                number < 8 + at,
                competition="spring",
            )
    await world.scores.loop.run_once()
    admin = await world.http(Role.ADMIN)
    assert (await admin.post("/competitions/spring/freeze")).status_code == 200
    found = (await world.http_with({}).get("/leaderboard/verdict")).json()
    assert found["prior_submissions"] == 10
    assert 0.5 < found["prior_up"] / (found["prior_up"] + found["prior_down"]) < 0.75


@pytest.mark.both_databases
async def test_the_board_says_it_filters_turns_and_exports(world: Board) -> None:
    async with world.database.write() as session:
        for name, size, licence in ((GOOD, 8 * 10**9, "mit"), (BAD, 10**9, "=cmd()")):
            row = await session.get(SubmissionRow, name)
            assert row is not None
            row.parameter_count, row.license = size, licence
    anyone = world.http_with({})

    async def page(query: str = "") -> str:
        answer = await anyone.get(f"http://test/?{query}")
        assert answer.status_code == 200, answer.text
        return answer.text

    whole = await page()
    assert (
        f"Not settled: {GOOD} leads, but 2 of 3 others may be more than 5 points better." in whole
    )
    assert "the leader is better: settled" in whole
    assert "By Bayes&#39; rule, with a flat prior" in whole

    async def shown(query: str) -> list[str]:
        text = await page(query)
        names = [name for name in (GOOD, NEAR, BAD, SILENT) if f'href="/submissions/{name}' in text]
        return sorted(names, key=lambda name: text.index(f'href="/submissions/{name}'))

    assert await shown("size=3") == [BAD]
    assert await shown("license=mit") == [GOOD]
    assert await shown("developer=nobody") == []
    assert await shown("sort=ratio") == [GOOD, NEAR, BAD, SILENT]
    assert await shown("sort=ratio&order=reverse") == [BAD, NEAR, GOOD, SILENT]
    assert 'aria-sort="ascending"' in await page("sort=ratio&order=reverse")

    model = (await anyone.get(f"http://test/submissions/{BAD}")).text
    assert 'href="https://huggingface.co/acme/tiny"' in model
    assert "=cmd()" in model
    assert 'property="og:title" content="tiny by ada"' in model

    answer = await anyone.get("http://test/leaderboard.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["submission_id"]: row["license"] for row in rows}[BAD] == "'=cmd()"
    assert {row["submission_id"]: row["thumbs_up"] for row in rows}[GOOD] == "55"


async def test_two_are_compared_side_by_side(world: Board) -> None:
    anyone = world.http_with({})
    none = await anyone.get("http://test/compare", headers={"Accept": "text/html"})
    assert "Choose two of the board" in none.text
    page = await anyone.get(f"http://test/compare?with={BAD}&with={GOOD}")
    assert page.status_code == 200, page.text
    assert f"Settled: {GOOD} is better than {BAD}." in page.text
    near = await anyone.get(f"http://test/compare?with={NEAR}&with={GOOD}")
    assert f"Not settled: {GOOD} leads, but {NEAR} may be more than 5 points better." in near.text
    assert page.text.index(f"/submissions/{GOOD}") < page.text.index(f"/submissions/{BAD}")
    silent = await anyone.get(f"http://test/compare?with={SILENT}&with={GOOD}")
    assert "One of them has no score yet" in silent.text
    for query, status in (
        (f"with={GOOD}", 422),
        (f"with={GOOD}&with={GOOD}", 422),
        (f"with={GOOD}&with=nobody_v1", 404),
        ("", 422),
    ):
        answer = await anyone.get(
            f"http://test/compare?{query}", headers={"Accept": "text/html,*/*"}
        )
        assert answer.status_code == status, (query, answer.text)
        assert "<h1" in answer.text


async def test_variants_of_a_sweep_are_one_row_on_the_board(world: Board) -> None:
    async with world.database.write() as session:
        for name in (NEAR, BAD):
            row = await session.get(SubmissionRow, name)
            assert row is not None
            row.sweep = "acme-tiny_s1"
    anyone = world.http_with({})
    board = (await anyone.get("http://test/")).text
    assert f"/submissions/{NEAR}" in board
    assert f"/submissions/{BAD}" not in board
    assert "and 1 more variant</a>" in board
    assert (await anyone.get("http://test/?sweep=zz")).status_code == 404
    variants = (await anyone.get("http://test/?sweep=acme-tiny_s1")).text
    assert f"/submissions/{BAD}" in variants
    assert f'href="/submissions/{GOOD}' not in variants
    rows = (await anyone.get("/leaderboard")).json()["rows"]
    assert {row["submission_id"]: row["sweep"] for row in rows}[BAD] == "acme-tiny_s1"


async def test_a_board_without_a_score_tells_of_ratings_left_out(world: Board) -> None:
    await world.competitions.put(
        "burst", CompetitionRequest(name="Burst", starts_at=world.clock.now())
    )
    votes = [(GOOD, f"fan-{number}", True) for number in range(least_burst() + 3)]
    await rate_all(world, world.backend, votes, competition="burst", at=world.clock.now())
    await world.scores.loop.run_once()
    page = (await world.http_with({}).get("http://test/?competition=burst")).text
    assert f"{len(votes)} ratings were given, and none counts" in page
    assert 'href="/docs/scores#left-out"' in page
    assert 'id="left-out"' in (await world.http_with({}).get("http://test/docs/scores")).text
    assert "and none counts" not in (await world.http_with({}).get("http://test/")).text
