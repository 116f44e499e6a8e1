"""Tests how often the reconciler may act on one deployment."""

from __future__ import annotations

import itertools

import pytest

from guanaco_server.deployments.reconciling.backoff import BURST, LONGEST_DELAY_S, Backoff
from guanaco_server.runtime.clock import FixedClock


def test_the_first_actions_are_free_and_the_others_ever_rarer() -> None:
    clock = FixedClock()
    pace = Backoff(clock)
    assert [pace.allows("m") for _ in range(BURST + 1)] == [True] * BURST + [False]
    acted, started = list[float](), clock.at
    for _ in range(2_000):
        clock.advance(1)
        if pace.allows("m"):
            acted.append((clock.at - started).total_seconds())
    gaps = [later - earlier for earlier, later in zip([0.0, *acted], acted, strict=False)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 64]
    assert LONGEST_DELAY_S <= max(gaps) <= LONGEST_DELAY_S + 1


def test_deployment_left_alone_restarts_and_others_are_not_slowed() -> None:
    clock = FixedClock()
    pace = Backoff(clock)
    while pace.allows("m"):
        clock.advance(0.1)
    assert pace.allows("other")
    clock.advance(BURST * LONGEST_DELAY_S)
    assert [pace.allows("m") for _ in range(BURST + 1)] == [True] * BURST + [False]


def test_a_deployment_that_is_gone_is_forgotten() -> None:
    clock = FixedClock()
    pace = Backoff(clock)
    while pace.allows("m"):
        pass
    pace.forget_all_but({"other"})
    assert pace.allows("m")


def test_what_dies_each_second_is_started_again_ever_more_rarely() -> None:
    clock = FixedClock()
    pace, starts = Backoff(clock, first_delay_s=5), list[int]()
    for second in range(200):
        if pace.allows("m"):
            starts.append(second)
        clock.advance(1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert gaps == pytest.approx([1, 1, 6, 20, 40, 80], abs=1)


def test_what_has_helped_is_forgotten() -> None:
    pace = Backoff(FixedClock())
    while pace.allows("m"):
        pass
    pace.forget("m")
    pace.forget("nobody")
    assert pace.allows("m")
