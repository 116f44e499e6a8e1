"""Duels that count in a competition's ranking: on the board, in its history of seasons, and gone with who is erased."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy import event, text

from guanaco.accounts import Role
from guanaco.leaderboard import LeaderboardVerdict
from guanaco.verdicts import chance_words, headline
from guanaco_server.accounts.service import Account
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.duels.tables import BattleRow, DuelRow
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER
from guanaco_server.statistics.strength_prior import WIDE
from tests.fixtures.newer_version import rewrite
from tests.fixtures.rating import conversation_row, rate, rate_all
from tests.fixtures.world import World

ONE, TWO, THREE = "one_v1", "two_v1", "three_v1"
RULES = {"battles": True, "counted": True}


class Arena(World):
    """A world with three submissions of two developers, and a competition in which duels count."""

    backend: Account
    admin: httpx.AsyncClient

    async def begin(self) -> Arena:
        for name, owner in ((ONE, "ada"), (TWO, "bob"), (THREE, "bob")):
            await self.publish(await self.account(Role.DEVELOPER, owner), name)
        self.backend = await self.account(Role.BACKEND, "app")
        self.admin = await self.http(Role.ADMIN)
        await self.put(RULES)
        return self

    async def put(self, duels: dict[str, bool], **fields: Any) -> None:
        body = {
            "name": "Autumn",
            "starts_at": self.clock.now().replace(year=2020).isoformat(),
            "ranking": "bradley_terry",
            "duels": duels,
        }
        answer = await self.admin.put("/competitions/autumn", json=body | fields)
        assert answer.status_code == 200, answer.text

    async def duel(
        self, user: str, a: str, b: str, outcome: str, replies: tuple[str, str] = ("A", "B")
    ) -> None:
        await self.duels(user, a, b, [outcome], replies)

    async def duels(
        self,
        user: str,
        a: str,
        b: str,
        outcomes: Sequence[str],
        replies: tuple[str, str] = ("A", "B"),
        takes_s: float = 1.0,
    ) -> None:
        """Recorded battles of one conversation with votes, as the gateway and the service store them."""
        await self.all_duels([(user, a, b, outcomes, replies)], takes_s)

    async def all_duels(
        self,
        given: Iterable[tuple[str, str, str, Sequence[str], tuple[str, str]]],
        takes_s: float = 1.0,
    ) -> None:
        """Conversations by user, both submissions, outcomes and replies, stored in one transaction."""
        conversations: list[ConversationRow] = []
        rows: list[BattleRow] = []
        votes: list[DuelRow] = []
        for user, a, b, outcomes, replies in given:
            now = self.clock.now()
            conversations.append(conversation_row(self.backend, a, user, "autumn", now))
            battles = self._battles(conversations[-1].id, a, b, outcomes, replies, takes_s)
            for battle, vote in battles:
                rows.append(battle)
                votes.append(vote)
        async with self.database.write() as session:
            session.add_all(conversations)
            await session.flush()
            session.add_all(rows)
            await session.flush()
            session.add_all(votes)

    def _battles(
        self,
        conversation: str,
        a: str,
        b: str,
        outcomes: Sequence[str],
        replies: tuple[str, str],
        takes_s: float,
    ) -> Iterable[tuple[BattleRow, DuelRow]]:
        for outcome in outcomes:
            now = self.clock.now()
            battle = BattleRow(
                id=f"battle_{uuid.uuid4().hex}",
                conversation_id=conversation,
                message_id=f"msg_{uuid.uuid4().hex}",
                competition="autumn",
                a_submission=a,
                b_submission=b,
                a_content=replies[0],
                b_content=replies[1],
                a_finish_reason="stop",
                b_finish_reason="stop",
                own_side="a",
                continues_from="a",
                outcome=outcome,
                revision=1,
                created_at=now,
                voted_at=now,
            )
            vote = DuelRow(
                battle_id=battle.id,
                revision=1,
                outcome=outcome,
                continues_from="a",
                at=now,
                given_by=self.backend.id,
            )
            self.clock.advance(takes_s)
            yield battle, vote

    async def rush(self, winner: str, loser: str) -> None:
        """A hundred duels in which neither is better, then ninety within a minute that all go one way."""
        await self.duels("calm", winner, loser, ["a", "b"] * 50, takes_s=60)
        self.clock.advance(60 - self.clock.now().timestamp() % 60)
        made = [(f"made-{n}", winner, loser, ["a"] * 15, ("A", "B")) for n in range(6)]
        await self.all_duels(made, takes_s=0.5)

    async def flagged(self, **params: Any) -> list[dict[str, Any]]:
        answer = await self.admin.get("/votes/flags", params={"limit": 1_000} | params)
        found: list[dict[str, Any]] = answer.json()
        return found

    async def board(self) -> dict[str, Any]:
        await self.scores.loop.run_once()
        answer = await self.http_with({}).get("/leaderboard", params={"competition": "autumn"})
        found: dict[str, Any] = answer.json()
        return found

    async def rows(self) -> dict[str, dict[str, Any]]:
        return {row["submission_id"]: row for row in (await self.board())["rows"]}


@pytest.fixture
async def world(database: Database) -> Arena:
    return await Arena(database).begin()


async def test_duels_rank_submissions_that_nobody_rated(world: Arena) -> None:
    for a, b, outcomes in ((ONE, TWO, ("a", "a")), (THREE, ONE, ("b", "tie"))):
        await world.all_duels(
            (f"user-{number}", a, b, [outcomes[number % 2]], ("A", "B")) for number in range(40)
        )
    board = await world.board()
    assert (board["counts_duels"], board["controls_style"]) == (True, False)
    rows = {row["submission_id"]: row for row in board["rows"]}
    assert [row["submission_id"] for row in board["rows"]] == [ONE, THREE, TWO]
    assert rows[ONE]["score"] > 1000 > rows[TWO]["score"]
    assert {row["rank"] for row in rows.values()} == {1}  # forty users do not settle it
    assert {name: row["duels"] for name, row in rows.items()} == {ONE: 80, TWO: 40, THREE: 40}
    patterns = (
        await world.admin.get("/votes/patterns", params={"competition": "autumn", "duels": True})
    ).json()
    assert all(one["excess"] is None for one in patterns), "too few to say"
    assert sum(one["narrow_up"] + one["broad_up"] for one in patterns) > 0


async def test_next_vote_is_used_and_thumbs_count_beside_it(world: Arena) -> None:
    await world.duel("alice", ONE, TWO, "a")
    first = (await world.rows())[ONE]["score"]
    await world.duel("bob", ONE, TWO, "a")
    second = (await world.rows())[ONE]["score"]
    await rate(world, world.backend, ONE, "carol", True, competition="autumn")
    await rate(world, world.backend, TWO, "carol", False, competition="autumn")
    third = (await world.rows())[ONE]["score"]
    assert 1000 < first < second < third


async def test_the_rule_decides_whether_they_count(world: Arena) -> None:
    await world.all_duels((f"user-{n}", ONE, TWO, "a", ("A", "B")) for n in range(5))
    assert (await world.rows())[ONE]["rank"] == 1
    await world.put({"battles": True})
    board = await world.board()
    assert board["counts_duels"] is False
    assert [(row["rank"], row["duels"]) for row in board["rows"]] == [(None, 0)] * 3


@pytest.mark.both_databases
async def test_an_erased_users_duels_no_longer_count(world: Arena) -> None:
    await world.all_duels((f"user-{n}", ONE, TWO, "a", ("A", "B")) for n in range(5))
    assert (await world.rows())[ONE]["duels"] == 5
    app = await world.http(Role.BACKEND, "app")
    assert (await app.post("/users/erase", json={"user_id": "user-1"})).status_code == 200
    assert (await world.rows())[ONE]["duels"] == 4


async def test_a_ranking_that_begins_anew_measures_no_reply_again(world: Arena) -> None:
    await world.put(RULES | {"style_control": True})
    await world.all_duels((f"user-{n}", ONE, TWO, "a", ("x" * 50, "y")) for n in range(5))
    before = await world.rows()
    read: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT") and "a_content" in statement:
            read.append(statement)

    engine = world.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        await world.scores.loop.start()  # which has everything read again
        await world.scores.loop.stop()
        assert await world.rows() == before
        assert read == []
        await world.duel("user-9", ONE, TWO, "b", ("x" * 50, "y"))
        assert (await world.rows())[ONE]["duels"] == 6
        assert len(read) == 1
    finally:
        event.remove(engine, "before_cursor_execute", note)


@pytest.mark.both_databases
async def test_a_frozen_season_with_duels_comes_out_the_same(world: Arena) -> None:
    await world.all_duels(
        (f"user-{n}", ONE, TWO, "a" if n % 3 else "b", ("x" * 50, "y")) for n in range(12)
    )
    votes = [(name, f"user-{number}", name == ONE) for number in range(12) for name in (ONE, THREE)]
    await rate_all(world, world.backend, votes, competition="autumn")
    await world.put(RULES | {"style_control": True})
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    season = json.loads(frozen["ranking"])
    assert season["schema"] == 7
    assert season["duels"]["by_submission"] == {ONE: 12, TWO: 12}
    assert set(season["duels"]["style"]) == {"length", "markdown", "position"}
    assert {line["submission_id"] for line in season["standings"]} == {ONE, TWO, THREE}
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert (check["is_same"], check["recomputed_sha256"]) == (True, frozen["sha256"])
    await world.scores.loop.run_once()
    path = "/leaderboard/stability?competition=autumn"
    pairs = (await world.http_with({}).get(path)).json()["pairs"]
    order = [line["submission_id"] for line in season["standings"]]
    assert [pair["below"] for pair in pairs] == order[1:]
    async with world.database.write() as session:
        await session.execute(text("UPDATE duels SET outcome = 'b'"))
    assert (await world.admin.post("/competitions/autumn/recompute")).json()["is_same"] is False


async def test_a_season_without_counted_duels_has_none(world: Arena) -> None:
    await world.put({"battles": True})
    await world.duel("alice", ONE, TWO, "a")
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    assert (json.loads(frozen["ranking"])["schema"], "duels" in frozen["ranking"]) == (7, False)


@pytest.mark.slow
async def test_with_style_control_length_wins_nothing(world: Arena) -> None:
    """TWO wins by long replies alone; where THREE writes as long ones, it wins as often."""
    long, short = "word " * 200, "word"
    await world.all_duels(
        duel
        for number in range(60)
        for duel in (
            (f"user-{number}", TWO, ONE, "a" if number % 6 else "b", (long, short)),
            (f"user-{number}", ONE, THREE, "b" if number % 6 else "a", (short, long)),
            (f"user-{number}", TWO, ONE, "a" if number % 2 else "b", (short, short)),
        )
    )
    plain = await world.rows()
    await world.put(RULES | {"style_control": True})
    controlled = await world.rows()
    assert plain[TWO]["score"] - plain[ONE]["score"] > 60
    gap = controlled[TWO]["score"] - controlled[ONE]["score"]
    assert abs(gap) < (plain[TWO]["score"] - plain[ONE]["score"]) / 2
    assert (await world.board())["controls_style"] is True


async def test_rules_that_contradict_each_other_are_refused(world: Arena) -> None:
    rules = {"name": "X", "starts_at": world.clock.now().isoformat(), "duels": {"counted": True}}
    answer = await world.admin.put("/competitions/x", json=rules)
    assert answer.status_code == 422
    assert "duels.counted needs the ranking" in answer.text
    rules |= {"ranking": "combined", "duels": {"style_control": True}}
    answer = await world.admin.put("/competitions/x", json=rules)
    assert answer.status_code == 422
    assert "duels.style_control needs duels.counted" in answer.text


async def test_how_few_votes_decide_is_found_with_duels_beside_them(world: Arena) -> None:
    votes = [(name, f"user-{number}", name == ONE) for number in range(30) for name in (ONE, TWO)]
    await rate_all(world, world.backend, votes, competition="autumn")
    await world.all_duels(
        ((f"user-{n}", TWO, ONE, "b" if n % 10 else "a", ("A", "B")) for n in range(30)), takes_s=60
    )
    await world.rows()
    answer = await world.http_with({}).get(
        "/leaderboard/stability", params={"competition": "autumn"}
    )
    (pair,) = answer.json()["pairs"]
    assert (pair["above"], pair["below"]) == (ONE, TWO)


async def test_deciding_duels_settle_the_verdict_and_choose_the_next_pair(
    world: Arena,
) -> None:
    await world.put(RULES, assignment={"kind": "decide"})
    await world.all_duels((f"user-{n}", ONE, TWO, "a", ("A", "B")) for n in range(25))
    await world.all_duels(
        (f"user-{n}", THREE, ONE, "a" if n % 2 else "b", ("A", "B")) for n in range(25)
    )
    visitor = world.http_with({})
    found = (await visitor.get("/leaderboard/verdict", params={"competition": "autumn"})).json()
    assert (found["is_by_duels"], found["leader"], found["is_decided"]) == (True, ONE, False)
    by_name = {pair["submission_id"]: pair for pair in found["pairs"]}
    assert (by_name[TWO]["state"], by_name[THREE]["state"]) == ("better", "open")
    assert by_name[THREE]["votes"] > 25
    assert "Not settled by duels" in headline(LeaderboardVerdict.model_validate(found))
    assert 0.4 < found["chance"] < 0.95
    assert (found["prior_submissions"], found["prior_spread"]) == (0, WIDE)
    assert "By Bayes' rule, with a wide prior" in str(
        chance_words(LeaderboardVerdict.model_validate(found))
    )

    await world.board()
    stability = (await visitor.get("/leaderboard/stability?competition=autumn")).json()["duels"]
    assert (stability["leader"], stability["submission_id"]) == (ONE, TWO)
    assert 1 <= stability["duels"] < 25
    (race,) = [one for one in await world.scores.races.read() if one.duels is not None]
    assert (race.ratings, race.duels[ONE, TWO]) == (50, (25, 0, 0))
    await world.routing.refresh()
    assert rival_of(world, TWO) == {ONE}
    assert rival_of(world, ONE) == {THREE, TWO}
    many = [chosen_rival(world, ONE, str(number)) for number in range(200)]
    assert many.count(THREE) > 3 * many.count(TWO), "what is open duels, what is new a little"
    spent, once = {ONE: COUNTED_PER_USER}, {ONE: COUNTED_PER_USER - 1}
    assert rival_of(world, TWO, once) == {ONE}
    assert rival_of(world, TWO, spent) == {THREE}, "another duel with the leader would not count"
    page = (await visitor.get("http://test/?competition=autumn")).text
    assert "The replies that they prefer decide, and a rank needs evidence." in page


async def test_stability_names_no_withdrawn_leader(world: Arena) -> None:
    await world.put(RULES, assignment={"kind": "decide"})
    for number in range(20):
        await world.duel(f"user-{number}", ONE, TWO, "a")
        await world.duel(f"user-{number}", TWO, THREE, "a")
    await world.scores.loop.run_once()
    await world.submissions.teardown(await world.account(Role.DEVELOPER, "ada"), ONE)
    answer = await world.http_with({}).get("/leaderboard/stability?competition=autumn")
    found = answer.json()["duels"]
    assert (found["leader"], found["submission_id"]) == (TWO, THREE)


async def test_one_user_settles_nothing_and_leaves_the_pair_open(world: Arena) -> None:
    await world.put(RULES, assignment={"kind": "decide"})
    await world.all_duels(("one-user", ONE, TWO, "a", ("A", "B")) for _ in range(19))
    found = (
        await world.http_with({}).get("/leaderboard/verdict", params={"competition": "autumn"})
    ).json()
    assert found["pairs"][0]["state"] == "open"
    await world.board()
    counted = await DuelCounts(world.database).by_pair("autumn")
    assert counted == {(ONE, TWO): (COUNTED_PER_USER, 0, 0)}


async def test_unknown_outcome_is_in_no_ranking_and_stops_nothing(
    world: Arena,
) -> None:
    await world.put(RULES, assignment={"kind": "decide"})
    await world.all_duels((f"user-{n}", ONE, TWO, "a", ("A", "B")) for n in range(5))
    await world.all_duels((f"user-{n}", THREE, ONE, "b", ("A", "B")) for n in range(5))
    known = await world.rows()
    await world.duel("user-9", ONE, TWO, "tie")
    for table in ("battles", "duels"):
        await rewrite(world.database, table, {"outcome": "tie"}, outcome="both_good")
    await world.routing.refresh()
    assert None not in rival_of(world, TWO)
    assert {name: row["score"] for name, row in (await world.rows()).items()} == {
        name: row["score"] for name, row in known.items()
    }


async def test_results_of_pairs_use_only_counted_duels(world: Arena) -> None:
    await world.duel("early", ONE, TWO, "b")
    begin = world.clock.now()
    await world.all_duels(
        ("devoted", ONE, (TWO, THREE)[n % 2], "a", ("A", "B")) for n in range(DEVOTED_RATINGS)
    )
    await world.duel("alice", TWO, ONE, "both_bad")
    await world.put({"battles": True}, starts_at=begin.isoformat())
    await world.board()
    (pair,) = (await world.admin.get("/competitions/autumn/duels")).json()
    score = pair["score"]
    assert (pair["first"], pair["second"]) == (ONE, TWO)
    assert (score["won"], score["lost"], score["tie"], score["both_bad"]) == (0, 0, 0, 1)


@pytest.mark.both_databases
async def test_burst_is_left_out_until_an_admin_allows_it(world: Arena) -> None:
    await world.rush(ONE, TWO)
    assert (await world.rows())[ONE]["duels"] == 100
    found = await world.flagged(duels=True, competition="autumn")
    assert {(flag["rule"], flag["submission_id"], flag["rival_id"]) for flag in found} == {
        ("burst", ONE, TWO)
    }
    assert len(found) == len(await world.flagged(submission=TWO)) == 90
    assert await world.flagged(duels=False) == []
    begin = world.clock.now().replace(year=2020).isoformat()
    await world.put(RULES, starts_at=world.clock.now().isoformat())
    await world.board()
    assert all(flag["lifted_at"] for flag in await world.flagged())
    await world.put(RULES, starts_at=begin)
    await world.board()
    assert not any(flag["lifted_at"] for flag in await world.flagged())

    first, second = found[0]["feedback_id"], found[1]["feedback_id"]
    allowed = await world.admin.post(f"/votes/{first}/allow")
    assert allowed.json()[0]["allowed_by"] is not None
    assert (await world.rows())[ONE]["duels"] == 101
    entries = (await world.admin.get("/audit")).json()["items"]
    assert [one["subject"] for one in entries if one["action"] == "allow vote"] == [first]
    world.clock.advance(1)
    frozen = (await world.admin.post("/competitions/autumn/freeze")).json()
    assert json.loads(frozen["ranking"])["duels"]["counted"] == 101
    world.clock.advance(1)
    await world.admin.post(f"/votes/{second}/allow")
    check = (await world.admin.post("/competitions/autumn/recompute")).json()
    assert check["is_same"] is True


def rival_of(world: Arena, own: str, met: Mapping[str, int] | None = None) -> set[str | None]:
    return {chosen_rival(world, own, str(number), met) for number in range(100)}


def chosen_rival(
    world: Arena, own: str, key: str, met: Mapping[str, int] | None = None
) -> str | None:
    assigned = world.routing.rival("autumn", own, key, met or {})
    return None if assigned is None else assigned.submission_id
