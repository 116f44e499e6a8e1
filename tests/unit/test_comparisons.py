"""Strengths from duels and thumbs: equal to what other packages find, clustered by user, and free of what style adds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.duels import fitted
from benchmarks.duels_data import made_votes
from guanaco.competitions import RankingRule
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_cli.leaderboard import columns_of, rows_of
from guanaco_server.duels.records import RecordedDuel
from guanaco_server.leaderboard.counting.votes import VotingWindow
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS, Owner
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelTable, DuelVotes
from guanaco_server.leaderboard.ranking.duels.style import Style, differences, style_of
from guanaco_server.leaderboard.ranking.rules import VotesByUser, standings
from guanaco_server.leaderboard.ranking.strengths import bradley_terry
from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels, fit
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER

# `made_votes(3000, 7, 150)` fitted by choix 0.4.1 and arena-rank 0.1.1; `make bench-duels` asks the packages themselves.
PEERS = json.loads((Path(__file__).parent / "golden" / "duel_strengths.json").read_text())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING: dict[str, Any] = dict.fromkeys(
    [
        "developer",
        "status",
        "score_low",
        "score_high",
        "thumbs_up_ratio",
        "interval_low",
        "interval_high",
        "feedback_count",
        "mean_conversation_length",
    ]
)
ALWAYS = VotingWindow(NOON, None)
OWNERS = {name: Owner(f"acc-{name}", f"dev-{name}") for name in ("one", "two", "three")}


def coded(*rows: tuple[int, int, int, float], weight: float = 1.0) -> CodedDuels:
    """Take (user, first, second, outcome)."""
    whole = np.asarray([row[:3] for row in rows], dtype=np.int64).reshape(len(rows), 3)
    outcomes = np.asarray([row[3] for row in rows], dtype=np.float64)
    none = np.zeros((len(rows), 0))
    weights = np.full(len(rows), weight)
    return CodedDuels(whole[:, 0], whole[:, 1], whole[:, 2], outcomes, weights, none)


@pytest.mark.parametrize("peer", ["choix", "arena_rank", "arena_rank_style"])
def test_the_strengths_are_those_of_other_packages(peer: str) -> None:
    found = fitted(made_votes(3_000, 7, 150), has_terms=peer == "arena_rank_style")
    assert found.values == pytest.approx(PEERS[peer]["strengths"], abs=1e-4)
    assert found.effects == pytest.approx(PEERS[peer].get("effects", []), abs=1e-4)


def test_thumbs_duels_and_terms_are_one_clustered_regression() -> None:
    votes = [(0, 3, 4), (1, 2), (0, 5), (3, 5)]
    made = made_votes(60, 3, 9)
    duels = CodedDuels(
        made["user"].astype(np.int64),
        made["first"].astype(np.int64) % 3,
        (made["first"].astype(np.int64) + 1) % 3,
        made["outcome"],
        np.linspace(0.3, 1.0, 60),
        made["terms"],
    )
    found = fit(votes, 3, duels)
    values, errors = _by_hand(votes, duels)
    assert [*found.values, *found.effects] == pytest.approx(values, abs=1e-9)
    assert [*found.errors, *found.effect_errors] == pytest.approx(errors, abs=1e-9)


def _by_hand(votes: list[tuple[int, ...]], duels: CodedDuels) -> tuple[list[float], list[float]]:
    """The same from a design matrix: each comparison a row, each user a cluster."""
    rows: list[NDArray[np.float64]] = []
    outcomes, weights, users = [], [], []
    for user, coded_votes in enumerate(votes):
        pairs = [(a, b) for k, a in enumerate(coded_votes) for b in coded_votes[k + 1 :]]
        for a, b in pairs:
            row = np.zeros(6)
            row[a >> 1], row[b >> 1] = 1, -1
            rows.append(row)
            outcomes.append((1 + (a & 1) - (b & 1)) / 2)
            weights.append(1 / len(pairs))
            users.append(user)
    for at in range(len(duels.users)):
        row = np.zeros(6)
        row[duels.first[at]], row[duels.second[at]] = 1, -1
        row[3:] = duels.terms[at]
        rows.append(row)
        outcomes.append(float(duels.outcomes[at]))
        weights.append(float(duels.weights[at]))
        users.append(int(duels.users[at]))
    x, y, w = np.asarray(rows), np.asarray(outcomes), np.asarray(weights)
    values = np.zeros(6)
    average, terms = np.diag([1.0, 1, 1, 0, 0, 0]), np.diag([0.0, 0, 0, 1, 1, 1])
    for _ in range(50):
        chance, alone = 1 / (1 + np.exp(-x @ values)), 1 / (1 + np.exp(-values))
        slope = x.T @ (w * (y - chance)) + average @ (0.5 - alone) - terms @ values
        bend = (x.T * (w * chance * (1 - chance))) @ x + terms
        bend += average @ np.diag(alone * (1 - alone))
        values = values + np.linalg.solve(bend, slope)
    meat = average / 4
    for user in set(users):
        mine = np.asarray(users) == user
        score = x[mine].T @ (w * (y - chance))[mine]
        meat = meat + np.outer(score, score)
    covariance = np.linalg.inv(bend) @ meat @ np.linalg.inv(bend)
    centring = np.eye(6)
    centring[:3, :3] -= 1 / 3
    spread = centring @ covariance @ centring.T
    return (centring @ values).tolist(), np.sqrt(np.diag(spread)).tolist()


def test_without_duels_the_strengths_are_those_of_the_thumbs() -> None:
    votes = [(0, 3, 4), (1, 2), (0, 5), (3, 5), (1,)]
    alone, found = bradley_terry.fit(votes, 3), fit(votes, 3, coded())
    assert found.values == pytest.approx(alone.values, abs=1e-12)
    assert found.errors == pytest.approx(alone.errors, abs=1e-12)


def counted(
    recorded: Iterable[RecordedDuel],
    window: VotingWindow = ALWAYS,
    owners: Mapping[str, Owner] = OWNERS,
) -> DuelVotes:
    table = DuelTable()
    table.take(recorded)
    return table.counted(owners, window)


def test_user_who_repeats_votes_on_a_pair_weighs_one() -> None:
    many = [duel(k, "a", user="busy") for k in range(DEVOTED_RATINGS - 1)]
    found = counted([*many, duel(90, "a", "two", "one", user="calm")])
    assert found.total == DEVOTED_RATINGS
    fitted_strengths = found.fit(VotesByUser(()), [])([], 2)
    assert fitted_strengths.values == pytest.approx([0.0, 0.0], abs=1e-9)
    assert fitted_strengths.compared == pytest.approx([2.0, 2.0])


def test_the_same_duels_in_any_order_give_the_same_strengths() -> None:
    recorded = [
        RecordedDuel(f"b{k}", "app", f"user-{k % 4}", *sides, ((NOON, "a" if k % 3 else "tie"),))
        for k, sides in enumerate([("one", "two"), ("two", "three"), ("three", "one")] * 5)
    ]

    def strengths(order: Sequence[RecordedDuel], parts: int) -> bradley_terry.Strengths:
        votes = VotesByUser([("ada", "one", True), ("ada", "two", False)])
        table, step = DuelTable(), -(-len(order) // parts)
        for start in range(0, len(order), step):
            table.take(order[start : start + step])
        return table.counted(OWNERS, ALWAYS).fit(votes, ["ada"])(votes.comparable(), 3)

    assert strengths(recorded, 1) == strengths(recorded[::-1], 1) == strengths(recorded[::-1], 4)


def test_what_style_adds_is_taken_off() -> None:
    """Two equals, one of whom writes long replies that users prefer for their length."""
    draw = np.random.default_rng(5)
    length = draw.uniform(0.2, 0.8, 4_000)
    wins = draw.random(4_000) < 1 / (1 + np.exp(-1.5 * length))
    duels = replace(
        coded(*((k, 0, 1, float(won)) for k, won in enumerate(wins))), terms=length[:, None]
    )
    plain = fit([], 2, replace(duels, terms=np.zeros((4_000, 0))))
    controlled = fit([], 2, duels)
    assert plain.values[0] > 6 * plain.errors[0]
    assert abs(controlled.values[0]) < 3 * controlled.errors[0]
    assert abs(controlled.effects[0] - 1.5) < 3 * controlled.effect_errors[0]


def test_style_is_length_markdown_and_side() -> None:
    plain = style_of("A long answer in words, with 3*4 and snake_case.")
    marked = style_of("# Title\n\n1. **one**\n2) __two__\n- three\n```py\n```")
    assert (plain.marks, marked.marks) == (0, 8)
    assert differences(Style(300, 3), Style(100, 0)) == (0.5, 1.0, 1.0)
    assert differences(Style(0, 0), Style(0, 0)) == (0.0, 0.0, 1.0)


def duel(number: int, outcome: str, a: str = "one", b: str = "two", **fields: str) -> RecordedDuel:
    return RecordedDuel(
        f"battle-{number}",
        fields.get("account", "app"),
        fields.get("user", "ada"),
        a,
        b,
        ((NOON + timedelta(minutes=number), outcome),),
    )


def outcomes(votes: DuelVotes) -> list[float]:
    found: list[float] = votes.coded(
        {"one": 0, "two": 1, "three": 2}.__getitem__, {}
    ).outcomes.tolist()
    return found


def test_the_first_vote_within_the_window_counts() -> None:
    until = NOON + timedelta(hours=1)
    votes = ((NOON, "a"), (NOON + timedelta(minutes=5), "b"), (until, "tie"))
    recorded = RecordedDuel("battle", "app", "ada", "one", "two", votes)
    assert outcomes(counted([recorded], VotingWindow(NOON, until))) == [1.0]
    assert outcomes(counted([recorded], VotingWindow(NOON + timedelta(minutes=1), None))) == [0.0]
    assert counted([recorded], VotingWindow(until, until)).total == 0
    table = DuelTable()
    table.take([recorded])
    for schema, outcome in ((6, 0.5), (7, 1.0)):
        found = table.counted(OWNERS, VotingWindow(NOON, None), schema=schema)
        assert outcomes(found) == [outcome]


def test_changed_votes_and_repeats_change_nothing_that_counts() -> None:
    table, first, other = DuelTable(), duel(1, "a"), duel(2, "b", "two", "three")
    assert table.take([first, other])
    assert not table.take([other])
    again = replace(first, votes=(*first.votes, (NOON + timedelta(hours=1), "tie")))
    assert table.take([again])
    assert (len(table), table.newest) == (2, NOON + timedelta(hours=1))
    assert outcomes(table.counted(OWNERS, ALWAYS)) == [1.0, 0.0]
    assert outcomes(table.counted(OWNERS, ALWAYS, schema=6)) == [0.5, 0.0]


def test_first_five_duels_of_a_user_are_tested() -> None:
    table = DuelTable()
    first = [duel(k, "a") for k in range(1, COUNTED_PER_USER + 1)]
    later = [duel(k, "a", "two", "one") for k in range(COUNTED_PER_USER + 1, 40)]
    bobs = [duel(50, "a", user="bob"), duel(51, "both_bad", user="bob")]
    table.take([*bobs, *later, *first, duel(60, "tie", "three", "two")])
    valid = table.counted(OWNERS, ALWAYS)
    assert valid.by_pair() == {
        ("one", "two"): (COUNTED_PER_USER + 1, 1, 0),
        ("three", "two"): (0, 1, 0),
    }
    assert valid.results_by_pair()["one", "two"] == (COUNTED_PER_USER + 1, 0, 0, 1)
    changed = first[0]
    table.take([replace(changed, votes=(*changed.votes, (NOON + timedelta(days=1), "b")))])
    now = table.counted(OWNERS, ALWAYS)
    assert now.results_by_pair() == valid.results_by_pair()
    known = {"one": 0.3, "two": -0.1}
    assert now.dependence(known, "one") == valid.dependence(known, "one")
    assert valid.dependence_by_rival("one") == {"two": pytest.approx(1.19, abs=0.01)}
    assert valid.dependence_by_rival("three") == {"two": 1.0}
    assert valid.dependence_by_rival("nobody") == {}
    latest = table.counted(OWNERS, ALWAYS, schema=6)
    assert latest.by_pair()["one", "two"] == (COUNTED_PER_USER, 1, 1)
    assert counted([]).by_pair() == DuelVotes().by_pair() == {}


def test_the_styles_of_replies_outlive_a_table() -> None:
    before, after = DuelTable(), DuelTable()
    before.take([duel(1, "a"), duel(2, "b")])
    before.measure({"battle-2": (Style(300, 3), Style(100, 0)), "battle-9": (Style(1, 1),) * 2})
    after.take([duel(2, "b"), duel(30, "a")])
    after.take_styles(before)
    assert after.unmeasured() == ["battle-30"]
    found = after.counted(OWNERS, ALWAYS, has_styles=True)
    assert found.terms is not None
    assert found.terms.tolist() == [list(differences(Style(300, 3), Style(100, 0)))]


def test_a_duel_takes_less_than_a_hundred_bytes() -> None:
    table = DuelTable()
    table.take(replace(duel(k, "a", user=f"user-{k}"), id=f"battle_{k:032x}") for k in range(1_000))
    assert table.row_bytes < 100 * len(table)


def test_own_chats_devoted_users_and_unknown_outcomes_are_left_out() -> None:
    own = duel(1, "a", account="acc-two")
    later = duel(2, "by_a_mile")
    stranger = duel(3, "a", "one", "four")
    devoted = [
        duel(10 + k, *(("a", "one", "two") if k % 2 else ("b", "three", "one")), user="fan")
        for k in range(DEVOTED_RATINGS)
    ]
    assert counted([own, later, stranger, *devoted]).total == 0
    for change in (duel(29, "tie", user="fan"), duel(29, "a", "two", "one", user="fan")):
        assert counted([*devoted[:-1], change]).total == DEVOTED_RATINGS
    assert counted(devoted[:-1]).total == DEVOTED_RATINGS - 1


def test_all_who_only_had_duels_share_the_error() -> None:
    rng = np.random.default_rng(3)
    few, many = (
        standings(
            RankingRule.BRADLEY_TERRY,
            {},
            [f"{k}_v1" for k in range(size)],
            (),
            fit=lambda _votes, count: fit([], count, ring(count, rng)),
        )
        for size in (32, 33)
    )
    widths = [one.score.high - one.score.low for board in (few, many) for one in board]
    assert max(widths[:32]) < min(widths[32:])


def ring(size: int, rng: np.random.Generator) -> CodedDuels:
    """Each submission against the next, so often that all errors are nearly the same."""
    rows = [(k, k % size, (k + 1) % size, float(rng.integers(2))) for k in range(400 * size)]
    return coded(*rows)


def test_the_board_shows_how_many_duels_count() -> None:
    row = LeaderboardRow.model_construct(
        submission_id="one_v1", duels=12, rank=1, score=1_010.0, **NOTHING
    )
    board = Leaderboard(
        at=NOON, ranking=RankingRule.BRADLEY_TERRY, counts_duels=True, rows=[]
    ).model_copy(update={"rows": [row]})
    columns = columns_of(board)
    assert rows_of(board)[0][columns.index("duels>")] == 12
    assert "duels>" not in columns_of(board.model_copy(update={"counts_duels": False}))
