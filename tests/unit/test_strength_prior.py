"""The chance by Bayes' rule that a leader in duels is within a margin of the best, and its prior."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.duel_strengths import PairCounts, results_of, strengths_of
from guanaco_server.statistics.strength_prior import (
    WIDE,
    StrengthPrior,
    chance_within_by_duels,
    dependence_of,
    fit_strength_prior,
    gaps_of,
)

MARGIN = 0.05
ALLOWED = math.log((0.5 + MARGIN) / (0.5 - MARGIN))


def chance(counts: PairCounts, *others: str, spread: float = 0.5) -> float:
    known = StrengthPrior(spread, doubt=0)
    return chance_within_by_duels("a", others or ("b",), counts, MARGIN, known)


def season(rng: random.Random, submissions: int, spread: float, duels: int) -> PairCounts:
    """So many duels of each pair of submissions."""
    strengths = {f"s{n:02}": rng.gauss(0, spread) for n in range(submissions)}
    counts = {}
    for one in strengths:
        for other in strengths:
            if one < other:
                preferred = 1 / (1 + math.exp(strengths[other] - strengths[one]))
                won = sum(rng.random() < preferred for _ in range(duels))
                counts[one, other] = DuelCount(won, 0, duels - won)
    return counts


def by_strength(counts: PairCounts) -> list[str]:
    strengths = strengths_of(results_of(sorted({one for pair in counts for one in pair}), counts))
    return sorted(strengths, key=strengths.__getitem__, reverse=True)


def test_two_submissions_agree_with_a_sum_over_a_grid() -> None:
    """With two, θ_b - θ_a is normal with variance 2 spread² before any duel."""
    duels = DuelCount(won=14, lost=9)
    above = below = 0.0
    for step in range(-4_000, 4_001):
        gap = step / 1_000
        log = (
            -gap * gap / 4 / 0.25 - 14 * math.log1p(math.exp(gap)) - 9 * math.log1p(math.exp(-gap))
        )
        if gap <= ALLOWED:
            below += math.exp(log)
        else:
            above += math.exp(log)
    assert chance({("a", "b"): duels}) == pytest.approx(below / (below + above), abs=0.01)


def test_without_duels_the_prior_speaks() -> None:
    expected = (1 + math.erf(ALLOWED / 2)) / 2  # of a difference whose variance is 2
    assert chance({}, spread=1.0) == pytest.approx(expected, abs=0.01)
    twenty = tuple(f"s{n}" for n in range(19))
    assert chance({}, *twenty, spread=1.0) < 0.12


def test_duels_with_third_ones_count_too() -> None:
    through = {("a", "c"): DuelCount(60, 0, 40), ("b", "c"): DuelCount(40, 0, 60)}
    assert chance(through) > 0.97
    assert chance({("a", "c"): DuelCount(60, 0, 40)}) < 0.9


def test_ties_make_it_more_certain() -> None:
    few, many = DuelCount(40, 0, 40), DuelCount(10, 60, 10)
    assert chance({("a", "b"): few}) < chance({("a", "b"): many})


def test_many_duels_decide_whatever_the_prior() -> None:
    counts = {("a", "b"): DuelCount(6_000, 0, 4_000)}
    assert chance(counts, spread=0.2) == chance(counts, spread=2.0) == 1.0
    assert chance({("a", "b"): DuelCount(4_000, 0, 6_000)}) < 0.001


@pytest.mark.parametrize("spread", [0.2, 0.6])
def test_prior_is_fitted_to_past_seasons(spread: float) -> None:
    rng = random.Random(3)
    past = [season(rng, 15, spread, duels=30) for _ in range(6)]
    found = fit_strength_prior(past)
    assert found.submissions == 90
    assert found.spread == pytest.approx(spread, rel=0.25)


def test_users_with_tastes_make_their_duels_tell_less() -> None:
    rng = np.random.default_rng(4)
    users = np.repeat(np.arange(300), 5)
    first, second = np.zeros(1_500, dtype=np.int64), np.tile(np.arange(1, 6), 300)
    for taste, low, high in ((0.0, 1.0, 1.3), (2.0, 2.0, 5.0)):
        chances = 1 / (1 + np.exp(-taste * np.repeat(rng.standard_normal(300), 5)))
        worths = (rng.random(1_500) < chances).astype(np.float64)
        found = dependence_of(users, first, second, worths, np.full(1_500, 0.5), 0)
        assert low <= found <= high
    fewer = chance_within_by_duels(
        "a", ("b",), {("a", "b"): DuelCount(60, 0, 40)}, MARGIN, StrengthPrior(0.5, doubt=0), 4.0
    )
    assert fewer < chance({("a", "b"): DuelCount(60, 0, 40)})


def test_too_few_past_duels_leave_a_wide_prior() -> None:
    few = {(f"s{n}", "z"): DuelCount(5, 5, 5) for n in range(30)}
    assert fit_strength_prior([few, {}]) == StrengthPrior(WIDE, 0)


def test_duels_of_the_season_correct_a_wrong_spread() -> None:
    counts = season(random.Random(8), 20, 0.6, duels=10)
    leader, *others = by_strength(counts)

    def chance_with(prior: StrengthPrior) -> float:
        return chance_within_by_duels(leader, others, counts, MARGIN, prior)

    right = chance_with(StrengthPrior(0.6, doubt=0))
    for spread in (0.2, 2.0):
        taken_as_known = chance_with(StrengthPrior(spread, doubt=0))
        assert abs(chance_with(StrengthPrior(spread)) - right) < abs(taken_as_known - right) / 2


def test_no_single_chance_is_less_than_that_of_all() -> None:
    counts = season(random.Random(8), 20, 0.4, duels=4)
    leader, *others = by_strength(counts)
    gaps = gaps_of(leader, others, counts, StrengthPrior(0.4))
    assert gaps.chance_within(MARGIN) < gaps.most_within(MARGIN) < 1
