"""The sequential test is right however often one looks, and finds what is worse in few observations."""

from __future__ import annotations

import math
import random

import pytest

from guanaco_server.statistics.sequential import Proportion, is_worse, log_evidence

ALPHA = 0.05
RUNS = 100
LOOKS = 200  # after every observation of the new arm


def stops_at(
    rng: random.Random, p_old: float, p_new: float, share: float, margin: float
) -> int | None:
    """The observation after which the new arm is called worse; None if it never is."""
    bad, total = [0, 0], [0, 0]
    while total[1] < LOOKS:
        arm = int(rng.random() < share)
        bad[arm] += rng.random() < (p_old, p_new)[arm]
        total[arm] += 1
        if arm and is_worse(
            Proportion(bad[1], total[1]), Proportion(bad[0], total[0]), margin=margin, alpha=ALPHA
        ):
            return sum(total)
    return None


@pytest.mark.parametrize(
    ("p_old", "p_new", "share", "margin"),
    [(0.1, 0.1, 0.5, 0.0), (0.02, 0.02, 0.3, 0.0), (0.3, 0.3, 0.5, 0.0), (0.1, 0.15, 0.5, 0.05)],
)
def test_false_alarms_stay_below_alpha_at_every_look(
    p_old: float, p_new: float, share: float, margin: float
) -> None:
    """On the boundary of the null, where false alarms are most frequent; a fixed-sample test would give 20 to 40 %."""
    rng = random.Random(f"{p_old} {p_new} {share}")
    alarms = sum(stops_at(rng, p_old, p_new, share, margin) is not None for _ in range(RUNS))
    assert alarms <= ALPHA * RUNS


def test_what_is_worse_is_found() -> None:
    rng = random.Random(1)
    found = [stops_at(rng, 0.02, 0.3, 0.1, 0.01) for _ in range(20)]
    assert all(at is not None and at < 1_500 for at in found)


def test_always_failing_version_is_found_within_a_few_turns() -> None:
    assert is_worse(Proportion(6, 6), Proportion(0, 120), margin=0.01, alpha=ALPHA / 3)
    assert not is_worse(Proportion(1, 1), Proportion(0, 120), margin=0.01, alpha=ALPHA / 3)


def test_without_observations_there_is_no_evidence() -> None:
    assert log_evidence(Proportion(0, 0), Proportion(0, 0)) == pytest.approx(0.0)


def test_the_evidence_is_one_on_average_where_nothing_is_worse() -> None:
    """E[E] <= 1 under the null, summed exactly over every outcome of six and six observations."""
    p, n = 0.3, 6
    mean = math.fsum(
        math.exp(log_evidence(Proportion(new, n), Proportion(old, n)))
        * math.prod(math.comb(n, bad) * p**bad * (1 - p) ** (n - bad) for bad in (new, old))
        for new in range(n + 1)
        for old in range(n + 1)
    )
    assert 0 < mean <= 1


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_best_of_the_null_equals_a_fine_search(margin: float) -> None:
    new, old = Proportion(9, 30), Proportion(3, 90)
    both = [
        sum(
            seen.bad * math.log(p) + (seen.total - seen.bad) * math.log1p(-p)
            for seen, p in ((new, p0 + margin), (old, p0))
        )
        for p0 in (step / 10_000 for step in range(1, 9_000))
    ]
    mixture = log_evidence(new, old, margin) - log_evidence(Proportion(0, 0), Proportion(0, 0))
    without_null = sum(
        math.lgamma(seen.bad + 0.5)
        + math.lgamma(seen.total - seen.bad + 0.5)
        - math.lgamma(seen.total + 1)
        - math.log(math.pi)
        for seen in (new, old)
    )
    assert without_null - mixture == pytest.approx(max(both), abs=1e-4)
