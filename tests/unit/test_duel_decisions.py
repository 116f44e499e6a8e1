"""Tests what duels show of two submissions, proved by counting every path, and the choice of the pairs that duel next."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.settling_duels import WORLDS, Table, World, season
from guanaco_server.routing.policies.duelling import Duelling, duelling
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.simulation.duels import DuelPlan, Users, duel_season
from guanaco_server.statistics.duel_decisions import (
    COUNTED_PER_USER,
    DuelCount,
    compare_duels,
    evidence_of_duels,
    fewest_duels,
)
from guanaco_server.statistics.duel_strengths import (
    HEARD,
    PairCounts,
    duels_between,
    leader_of,
    strengths_of,
)

MARGIN = 0.05
FOUR = ("a", "b", "c", "d")

Outcomes = tuple[float, float, float]
"""The chances that the leader wins, ties and loses."""


def chance_of_ever_claiming(outcomes: Sequence[Outcomes], duels: int, alpha: float) -> float:
    """Look after every duel, whose chances take turns; return the exact chance that the claim is ever made."""
    still: dict[DuelCount, float] = {DuelCount(): 1.0}
    claimed = 0.0
    for number in range(duels):
        following: defaultdict[DuelCount, float] = defaultdict(float)
        for counts, weight in still.items():
            for worth, chance in zip(
                (1.0, 0.5, 0.0), outcomes[number % len(outcomes)], strict=True
            ):
                following[counts.plus(worth)] += weight * chance
        still = {}
        for counts, weight in following.items():
            if evidence_of_duels(counts, MARGIN) >= -math.log(alpha):
                claimed += weight
            else:
                still[counts] = weight
    return claimed


@pytest.mark.parametrize(
    "outcomes",
    [
        [(0.45, 0.0, 0.55)],
        [(0.2, 0.5, 0.3)],
        [(0.0, 0.9, 0.1)],
        [(0.35, 0.0, 0.65), (0.55, 0.0, 0.45)],  # users of whom every second one likes it
        [(0.0, 0.8, 0.2), (0.4, 0.2, 0.4)],
    ],
)
def test_looking_after_every_duel_keeps_the_error_of_a_claim(outcomes: list[Outcomes]) -> None:
    assert chance_of_ever_claiming(outcomes, 45, 0.3) <= 0.3


def test_count_proves_that_a_false_claim_would_be_seen() -> None:
    assert chance_of_ever_claiming([(0.55, 0.0, 0.45)], 45, 0.3) > 0.3


def test_ties_are_evidence_that_nobody_is_far_behind() -> None:
    without = DuelCount(won=60, tied=0, lost=60)
    assert evidence_of_duels(without._replace(tied=300), MARGIN) > evidence_of_duels(
        without, MARGIN
    )


@given(
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 300),
    st.sampled_from([0.02, 0.05, 0.3]),
)
def test_win_or_wider_margin_never_weakens_a_claim(
    won: int, tied: int, lost: int, margin: float
) -> None:
    duels = DuelCount(won, tied, lost)
    before = evidence_of_duels(duels, margin)
    assert evidence_of_duels(duels.plus(1.0), margin) >= before - 1e-9
    assert evidence_of_duels(duels.plus(0.0), margin) <= before + 1e-9
    assert evidence_of_duels(duels, margin + 0.01) >= before - 1e-9


def test_the_duels_that_are_foretold_settle_it() -> None:
    duels = DuelCount(50, 20, 45)
    found = compare_duels(duels, margin=MARGIN, members=20)
    assert (found.is_better, found.is_within) == (False, False)
    assert found.foretold.votes is not None

    def after(more: float) -> bool:
        times = 1 + more * found.foretold.votes / duels.total if found.foretold.votes else 1
        grown = DuelCount(*(round(times * count) for count in duels))
        return compare_duels(grown, margin=MARGIN, members=20).is_within

    assert after(1.03)
    assert not after(0.9)


@pytest.mark.parametrize("duels", [DuelCount(), DuelCount(10, 0, 40), DuelCount(0, 0, 5)])
def test_nothing_is_claimed_or_foretold_without_reason(duels: DuelCount) -> None:
    found = compare_duels(duels, margin=MARGIN, members=2)
    assert (found.is_better, found.is_within, found.foretold.votes) == (False, False, None)


def test_a_season_ends_with_a_right_claim() -> None:
    found = [
        season(seed, MARGIN, WORLDS["likes correlated by 0.5, a fifth ties"]) for seed in (1, 2)
    ]
    assert all(one.after is not None for one in found)
    assert not any(one.is_wrong for one in found)


def test_simulated_duels_are_counted_as_the_ranking_counts_them() -> None:
    world = World(Users(tastes=0.6, duels=20))
    plan = DuelPlan(6, 0.2, 0.1, 20, 2_000, world.users, lambda chance: [0.0, 0, 0, 0, 0.1, 0.2])
    for seed in (1, 2):
        assert duel_season(plan, seed, Table) == duel_season(plan, seed)


def test_users_who_leave_when_they_are_ahead_mislead_no_claim() -> None:
    """Each has no preference, and goes on until they prefer one more often than the other."""
    evidence = cache(lambda duels: evidence_of_duels(duels, 0.0))  # seasons meet the same counts
    wrong = 0
    for seed in range(400):
        chance = random.Random(seed)
        duels, is_claimed = DuelCount(), False
        for _ in range(400):
            lead = 0
            for _ in range(COUNTED_PER_USER):
                won = chance.random() < 0.5
                lead += 1 if won else -1
                duels = duels.plus(float(won))
                is_claimed = is_claimed or evidence(duels) >= -math.log(0.05)
                if lead > 0:
                    break
        wrong += is_claimed
    assert 0 < wrong / 400 <= 0.05


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.2])
def test_fewest_duels_to_reopen_a_pair_match_all_subsets(margin: float) -> None:
    needed = 1.0
    settled = 0
    for duels in itertools.starmap(DuelCount, itertools.product(range(9), range(6), range(4))):
        left = {
            DuelCount(won, tied, lost)
            for won in range(duels.won + 1)
            for tied in range(duels.tied + 1)
            for lost in range(duels.lost + 1)
            if evidence_of_duels(DuelCount(won, tied, lost), margin) < needed
        }
        expected = duels.total - max(one.total for one in left)
        found = fewest_duels(duels, margin=margin, needed=needed)
        assert (found or 0) == expected
        settled += found is not None
    assert settled > 10


def test_strengths_add_up_over_a_chain_of_pairs() -> None:
    """a and c never met, but both met b."""
    results = {
        "a": {"b": DuelCount(600, 0, 400)},
        "b": {"a": DuelCount(400, 0, 600), "c": DuelCount(700, 0, 300)},
        "c": {"b": DuelCount(300, 0, 700)},
    }
    strengths = strengths_of(results)
    assert strengths["a"] - strengths["c"] == pytest.approx(0.6, abs=0.03)


def plan(counts: PairCounts, names: Sequence[str] = FOUR) -> Duelling:
    return duelling(names, counts, MARGIN, 0.1, 50)


def test_close_rivals_duel_with_the_leader_more_than_hopeless_ones() -> None:
    counts = {
        ("a", "b"): DuelCount(30, 5, 25),
        ("a", "c"): DuelCount(45, 5, 10),
        ("a", "d"): DuelCount(55, 2, 3),
    }
    found = plan(counts)
    assert found.leader == "a"
    assert found.shares["b"] > 0.8
    assert sum(found.shares.values()) == pytest.approx(1, abs=1e-5)
    shares = found.conversations([Entry(name, 0.0, 0, 0, 1.0) for name in FOUR]).chances(
        frozenset()
    )
    assert shares["a"] == pytest.approx(0.5, abs=1e-3)
    assert found.rivals("c").chances(frozenset()) == {"a": 1.0}
    assert set(found.rivals("a").chances(frozenset())) == {"b", "c", "d"}


def test_settled_rivals_get_no_more_duels_and_newcomers_some() -> None:
    shown = {
        ("a", "b"): DuelCount(500, 0, 100),
        ("a", "c"): DuelCount(40, 5, 38),
        ("a", "d"): DuelCount(9, 0, 5),
    }
    found = plan(shown)
    assert found.shares["b"] == 0
    assert found.shares["d"] >= 0.1, "the floor of those with fewer than 50"
    unheard = plan(shown | {("a", "d"): DuelCount(HEARD - 2, 0, 0)})
    assert unheard.shares["d"] >= 0.25


def test_before_anything_is_heard_all_duel_alike() -> None:
    found = plan({})
    assert (found.leader, set(found.shares.values())) == (None, {0.25})
    assert found.rivals("a").chances(frozenset()) == pytest.approx(
        {"b": 1 / 3, "c": 1 / 3, "d": 1 / 3}
    )


def test_an_entry_that_is_newer_than_the_plan_takes_part() -> None:
    entries = [Entry(name, 0.0, 0, 0, 1.0) for name in (*FOUR, "e")]
    assert plan({}).conversations(entries).chances(frozenset())["e"] > 0.1


def test_two_lucky_duels_make_no_leader() -> None:
    """The verdict has the plan's leader, and a newcomer leads neither before it was heard."""
    shown = {("a", name): DuelCount(330, 100, 170) for name in FOUR[1:]}
    for won in range(1, HEARD + 2):
        counts = {**shown, ("a", "new"): DuelCount(0, 0, won)}
        names = [*FOUR, "new"]
        assert leader_of(names, counts) == plan(counts, names).leader
        assert (leader_of(names, counts) == "a") is (won < HEARD)
    assert leader_of(names, {("a", "new"): DuelCount(0, 0, 2)}) == "new", "nobody was heard"


def test_duels_are_the_same_from_both_sides() -> None:
    counts = {("a", "b"): DuelCount(3, 2, 1)}
    assert duels_between(counts, "a", "b") == (3, 2, 1)
    assert duels_between(counts, "b", "a") == (1, 2, 3)
    assert leader_of(FOUR, counts) == "a"
    assert leader_of(FOUR, {}) is None
