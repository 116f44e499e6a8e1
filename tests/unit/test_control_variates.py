"""Signals as control variates: worth something where ratings are a random part, and misleading where users choose to rate."""

from __future__ import annotations

from benchmarks.control_variates import kinds


def test_signals_gain_with_random_ratings_and_mislead_with_chosen_ones() -> None:
    found = kinds(seed=1, seasons=20)
    assert 950 < found["blind"]["ratings for 1,000"] < 1_050
    assert found["helpful"]["ratings for 1,000"] < 920
    assert abs(found["helpful"]["bias, corrected"]) < 0.01
    assert found["helpful"]["held, corrected"] >= 0.9
    assert abs(found["chosen"]["bias, plain"]) < 0.01
    assert found["chosen"]["bias, corrected"] < -0.08
    assert found["chosen"]["held, corrected"] == 0
