"""The intervals have their published values, and cover what they promise."""

from __future__ import annotations

import random
from statistics import median

import pytest

from guanaco_server.statistics.intervals import (
    mean_interval,
    median_interval,
    newcombe_interval,
    t_95,
)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombes_interval_has_the_values_of_his_table(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    assert newcombe_interval(first, second) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1_000, 1.9623)],
)
def test_students_quantile_has_its_tabled_values(freedom: int, quantile: float) -> None:
    assert t_95(freedom) == pytest.approx(quantile, abs=1e-3)


def test_a_mean_of_one_value_has_no_interval() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((-0.4841, 4.4841), abs=1e-3)


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (10, 2), (20, 6), (50, 18), (100, 40)])
def test_a_medians_interval_has_the_tabled_ranks(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    assert median_interval(values) == (rank, count + 1 - rank)


def test_too_few_values_give_no_interval_of_a_median() -> None:
    assert median_interval([1.0] * 5) is None


@pytest.mark.parametrize("count", [7, 40, 1_500])
def test_a_medians_interval_covers_it_in_95_of_100_cases(count: int) -> None:
    chance = random.Random(count)
    true, covered = median([chance.expovariate(1) for _ in range(200_001)]), 0
    for _ in range(400):
        interval = median_interval([chance.expovariate(1) for _ in range(count)])
        assert interval is not None
        covered += interval[0] <= true <= interval[1]
    assert covered >= 370
