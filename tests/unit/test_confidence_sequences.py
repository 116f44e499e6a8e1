"""Confidence sequences, proved by counting every path: no simulation, so no noise."""

from __future__ import annotations

import math
import random

import pytest

from guanaco_server.statistics.confidence_sequences import (
    ALPHA,
    asymptotic_multiple,
    difference_sequence,
    log_evidence_against,
    proportion_sequence,
    proportion_sequences,
    shared_alpha,
)
from guanaco_server.statistics.intervals import wilson_interval

VOTES = 150


def chance_of_ever_missing(chances: list[float], alpha: float) -> float:
    """Look after every vote; return the exact chance that the mean so far is once outside."""
    still = {0: 1.0}
    missed = total = 0.0
    for n, chance in enumerate(chances, 1):
        total += chance
        following: dict[int, float] = {}
        for up, weight in still.items():
            following[up] = following.get(up, 0.0) + weight * (1 - chance)
            following[up + 1] = following.get(up + 1, 0.0) + weight * chance
        still = {}
        for up, weight in following.items():
            if log_evidence_against(total / n, up, n) >= -math.log(alpha):
                missed += weight
            else:
                still[up] = weight
    return missed


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.6, 0.95])
def test_looking_after_every_vote_keeps_the_error(chance: float) -> None:
    assert 0.002 < chance_of_ever_missing([chance] * VOTES, ALPHA) <= ALPHA


@pytest.mark.parametrize("kinds", [(0.2, 0.9), (0.9, 0.5, 0.1)])
def test_users_who_differ_keep_the_error(kinds: tuple[float, ...]) -> None:
    mixed = [kinds[n % len(kinds)] for n in range(VOTES)]
    drifting = sorted(mixed)
    assert chance_of_ever_missing(mixed, ALPHA) <= ALPHA
    assert chance_of_ever_missing(drifting, ALPHA) <= ALPHA


@pytest.mark.parametrize(
    ("up", "total"), [(0, 1), (1, 1), (0, 40), (40, 40), (30, 50), (600_000, 10**6)]
)
def test_interval_is_wider_than_for_one_look(up: int, total: int) -> None:
    low, high = proportion_sequence(up, total)
    fixed_low, fixed_high = wilson_interval(up, total)
    assert 0 <= low <= fixed_low <= up / total <= fixed_high <= high <= 1
    for end, further in ((low, low - 1e-6), (high, high + 1e-6)):
        if 0 < end < 1:
            assert log_evidence_against(further, up, total) > -math.log(ALPHA)
            assert log_evidence_against(end, up, total) == pytest.approx(-math.log(ALPHA), abs=1e-3)


def test_million_votes_have_an_interval_of_0_3_points() -> None:
    low, high = proportion_sequence(600_000, 10**6, shared_alpha(20))
    assert high - low < 0.006


def test_the_difference_lies_between_the_ends_of_both() -> None:
    low, high = difference_sequence((70, 100), (40, 100))
    assert low < 0.3 < high
    assert difference_sequence((700, 1_000), (400, 1_000))[0] > 0.18


def test_errors_add_up_to_alpha_whoever_joins() -> None:
    spent = math.fsum(shared_alpha(place) for place in range(1, 40_000))
    assert 0.99 * ALPHA < spent <= ALPHA
    assert shared_alpha(20) == shared_alpha(1) == ALPHA / 64
    assert shared_alpha(33) < shared_alpha(32)


def test_more_looks_cost_more_standard_errors() -> None:
    multiples = [asymptotic_multiple(n, ALPHA) for n in (1, 10, 1_000, 10**6)]
    assert min(multiples) > 2.5
    assert multiples[2] == min(multiples)


@pytest.mark.parametrize(
    ("alpha", "up", "total", "low", "high"),
    [
        (0.05, 60, 100, 0.440774, 0.746036),
        (0.05, 700, 1_000, 0.646985, 0.749662),
        (0.05, 9_000, 20_000, 0.436200, 0.463852),
        (0.05 / 64, 60, 100, 0.386723, 0.789922),
        (0.05 / 64, 700, 1_000, 0.631228, 0.763224),
        (0.05 / 64, 9_000, 20_000, 0.432893, 0.467186),
    ],
)
def test_widths_are_those_of_ville(
    alpha: float, up: int, total: int, low: float, high: float
) -> None:
    """By ville 0.1.0 (numpy 2.4.6, scipy 1.17.1): ``BernoulliCS(alpha, prior=(1, 1), intersect=False)`` after ``total`` votes.

    Its beta-binomial mixture takes one constant chance for all votes, ours does not.
    """
    ours = proportion_sequence(up, total, alpha)
    assert 0.85 < (ours[1] - ours[0]) / (high - low) < 1.06
    assert ours == pytest.approx((low, high), abs=0.011)


@pytest.mark.parametrize(
    ("alpha", "users", "multiple"),
    [
        (0.05, 100, 3.82322),
        (0.05, 1_000, 3.03512),
        (0.05, 50_000, 3.46998),
        (0.05 / 64, 100, 4.91994),
        (0.05 / 64, 1_000, 4.26747),
        (0.05 / 64, 50_000, 4.59265),
    ],
)
def test_asymptotic_multiples_are_those_of_ville(alpha: float, users: int, multiple: float) -> None:
    """By ville 0.1.0: ``normal_mixture(users, alpha, best_rho(1_000, alpha)) / sqrt(users)``, of which ours takes the closed approximation."""
    assert asymptotic_multiple(users, alpha) == pytest.approx(multiple, rel=0.02)


@pytest.mark.parametrize("alpha", [0.05, 1e-9])
def test_intervals_computed_together_are_those_computed_alone(alpha: float) -> None:
    rng = random.Random(1)
    counts = [(0, 1), (1, 1), (0, 10**6), (10**6, 10**6)]
    for _ in range(100):
        trials = int(10 ** rng.uniform(0, 6))
        counts.append((rng.randint(0, trials), trials))
    for found, one in zip(proportion_sequences(counts, alpha), counts, strict=True):
        alone = proportion_sequence(*one, alpha)
        assert found == pytest.approx(alone, abs=1e-7)
        assert found[0] <= one[0] / one[1] <= found[1]
    assert proportion_sequences(counts[:5], alpha) == [
        proportion_sequence(*one, alpha) for one in counts[:5]
    ]
