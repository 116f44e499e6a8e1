"""The sequential tests are right however often one looks and however observations are alike, and find what is worse in few."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from guanaco_server.statistics.sequential import (
    Proportion,
    is_over,
    is_worse,
    log_evidence_above,
)

ALPHA = 0.05
RUNS = 300
CONVERSATIONS = 300
TURNS = 20


def stops(
    rng: random.Random, is_bad: Callable[[random.Random, int], bool], share: float, margin: float
) -> int | None:
    """The conversation after which the new version is called worse; None if it never is. ``is_bad`` takes the version."""
    bad, total = [0, 0], [0, 0]
    for number in range(CONVERSATIONS):
        arm = int(rng.random() < share)
        bad[arm] += is_bad(rng, arm)
        total[arm] += 1
        new, old = Proportion(bad[1], total[1]), Proportion(bad[0], total[0])
        if is_worse(new, old, share=share, margin=margin, alpha=ALPHA):
            return number + 1
    return None


def fails_in_rows(rng: random.Random, _arm: int) -> bool:
    """Two in a hundred conversations fail at nine in ten of their turns, the others at one in 500."""
    chance = 0.9 if rng.random() < 0.02 else 0.002
    return rng.random() < 1 - (1 - chance) ** TURNS


def alike(chance: float) -> Callable[[random.Random, int], bool]:
    return lambda rng, _arm: rng.random() < chance


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("is_bad", [fails_in_rows, alike(0.02), alike(0.3)])
def test_a_version_as_good_is_rarely_called_worse(
    is_bad: Callable[[random.Random, int], bool], share: float
) -> None:
    """There is a look after every conversation. Counting replies, 18.5 % of canaries were stopped where conversations fail in rows."""
    rng = random.Random(f"{share}")
    alarms = sum(stops(rng, is_bad, share, 0.0) is not None for _ in range(RUNS))
    assert alarms <= ALPHA * RUNS


def test_an_hour_that_is_bad_for_both_stops_neither() -> None:
    rng, alarms = random.Random(3), 0
    for _ in range(RUNS):
        number = iter(range(CONVERSATIONS))
        outage = rng.randrange(CONVERSATIONS - 50)

        def is_bad(
            rng: random.Random, _arm: int, number: Any = number, outage: int = outage
        ) -> bool:
            return rng.random() < (0.8 if outage <= next(number) < outage + 50 else 0.01)

        alarms += stops(rng, is_bad, 0.1, 0.0) is not None
    assert alarms <= ALPHA * RUNS


def test_conversations_that_fail_later_are_counted_when_they_do() -> None:
    """Failures come in any order, long after the conversation began: the test is of whose they are."""
    chance = np.random.default_rng(4)
    alarms = 0
    for _ in range(RUNS):
        is_new = chance.random(200) < 0.1
        fails = np.flatnonzero(chance.random(200) < 0.2)
        labels = is_new[fails[np.argsort(chance.random(len(fails)))]]
        alarms += any(
            is_over(Proportion(int(labels[:n].sum()), n), 0.1, alpha=ALPHA)
            for n in range(1, len(labels) + 1)
        )
    assert alarms <= ALPHA * RUNS


def test_what_is_worse_is_found() -> None:
    rng = random.Random(1)

    def is_bad(rng: random.Random, arm: int) -> bool:
        return rng.random() < (0.02, 0.5)[arm]

    found = [stops(rng, is_bad, 0.1, 0.01) for _ in range(20)]
    assert sum(at is not None for at in found) >= 18


def test_version_that_fails_every_conversation_is_found_soon() -> None:
    few = {"share": 0.1, "margin": 0.01, "alpha": ALPHA / 3}
    assert is_worse(Proportion(4, 4), Proportion(0, 36), **few)
    assert not is_worse(Proportion(1, 1), Proportion(0, 9), **few)


def test_a_difference_within_the_margin_is_no_reason() -> None:
    new, old = Proportion(400, 4_000), Proportion(300, 4_000)
    assert is_worse(new, old, share=0.5, margin=0.02, alpha=ALPHA)
    assert not is_worse(new, old, share=0.5, margin=0.03, alpha=ALPHA)


def test_a_limit_is_held_to_though_chances_differ() -> None:
    """Requests of four kinds in turn; their mean chance is the limit."""
    rng = random.Random(2)
    kinds, alarms = (0.0, 0.01, 0.04, 0.15), 0
    for _ in range(RUNS):
        bad = 0
        for number in range(400):
            bad += rng.random() < kinds[number % 4]
            if is_over(Proportion(bad, number + 1), 0.05, alpha=ALPHA):
                alarms += 1
                break
    assert alarms <= ALPHA * RUNS


def test_without_observations_there_is_no_evidence() -> None:
    assert log_evidence_above(0.3, 0, 0) == pytest.approx(0.0)


def test_the_evidence_is_at_most_one_on_average() -> None:
    """E[M] <= 1 at the mean of chances that differ, summed exactly over every outcome."""
    chances = (0.1, 0.2, 0.3, 0.6)
    mean = math.fsum(
        math.exp(log_evidence_above(0.3, bin(outcome).count("1"), len(chances)))
        * math.prod(
            chance if outcome >> place & 1 else 1 - chance for place, chance in enumerate(chances)
        )
        for outcome in range(2 ** len(chances))
    )
    assert 0 < mean <= 1
