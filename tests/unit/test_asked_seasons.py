"""The seasons of the benchmark of asked shares: each kind runs, and says what the product says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import asked_seasons
from benchmarks.asked_seasons import SHARE, WORLDS, season, settling


@pytest.mark.parametrize("name", list(WORLDS))
def test_each_kind_of_season_is_tried(name: str) -> None:
    tried = [season(WORLDS[name], (1, 2, number)) for number in range(2)]
    assert all(one.held and one.plain_held for one in tried)
    assert max(abs(one.error) for one in tried) < 0.1
    assert all(one.spread <= 1.02 * one.plain_spread for one in tried)


def test_the_truth_is_that_of_all_who_could_be_asked() -> None:
    """Count what all would have answered: the drawn outcomes of those who were asked have the means that are taken for true."""
    world = WORLDS["chosen"]
    asked, likely_up, likely = asked_seasons.drawn(np.random.default_rng(3), world, 60_000)
    assert asked.up.sum() / SHARE == pytest.approx(likely_up.sum(), rel=0.04)
    assert asked.answered.sum() / SHARE == pytest.approx(likely.sum(), rel=0.03)


def test_signals_settle_sooner() -> None:
    plain, ours = settling(WORLDS["helpful"], (1, 11, 0))
    assert 0 < ours <= plain
