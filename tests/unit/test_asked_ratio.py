"""Tests the ratio of all who could be asked: its estimate has no bias, its sequence holds at every look, whatever the signals say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from guanaco_server.statistics.answer_lines import AskedConversations, predictions
from guanaco_server.statistics.asked_ratio import (
    DIRECTIONS,
    RATIO,
    SIZES,
    STEEPEST,
    AskedSums,
    asked_sequences,
    compare_asked,
    evidence,
    is_excluded,
    log_mixture,
    sums_of,
    terms_of,
)

CONVERSATIONS = 16
CHANCE = 0.4
ALPHA = 0.4  # some of so short paths are to reach it
LINE, CENTER = (0.3, 0.45), (0.35, 0.5)
Chances = Callable[[int], tuple[float, float]]  # to answer, and to answer with thumbs up


def steady(_: int) -> tuple[float, float]:
    return 0.7, 0.42


def drifting(number: int) -> tuple[float, float]:
    return (0.9, 0.81) if number % 10 < 4 else (0.4, 0.08)


def falling(number: int) -> tuple[float, float]:
    return 0.9 - 0.04 * number, 0.8 * (0.9 - 0.04 * number) * (number < 8)


@pytest.mark.parametrize("chances", [steady, drifting, falling])
def test_every_path_together_errs_no_more_than_promised(chances: Chances) -> None:
    """Count all paths of 16 conversations, each not asked, not answered, answered with thumbs down or up: none is left to chance."""
    needed = math.log(2 / ALPHA)
    start: dict[tuple[int, ...], float] = {(0, 0, 0, 0): 1.0}
    erred = {True: 0.0, False: 0.0}
    likely = {True: start, False: start}
    up_mean = answer_mean = 0.0
    for number in range(CONVERSATIONS):
        answers, ups = chances(number)
        up_mean, answer_mean = up_mean + ups, answer_mean + answers
        steps = (1 - CHANCE, CHANCE * (1 - answers), CHANCE * (answers - ups), CHANCE * ups)
        for above in (True, False):
            after: dict[tuple[int, ...], float] = {}
            for counts, chance in likely[above].items():
                for kind, step in enumerate(steps):
                    grown = tuple(one + (place == kind) for place, one in enumerate(counts))
                    after[grown] = after.get(grown, 0.0) + chance * step
            excluded = _evidence(list(after), up_mean / answer_mean, above=above) >= needed
            for (counts, chance), is_out in zip(list(after.items()), excluded, strict=True):
                if is_out:
                    erred[above] += chance
                    del after[counts]
            likely[above] = after
    assert 0 < erred[True] + erred[False] <= ALPHA
    assert max(erred.values()) <= ALPHA / 2


def _evidence(paths: list[tuple[int, ...]], ratio: float, *, above: bool) -> NDArray[np.float64]:
    """Return the evidence against the true ratio after paths of these numbers of conversations of each kind."""
    counts = np.array(paths, dtype=np.float64)
    terms = np.array([_term(asked, answered, up) for asked, answered, up in KINDS])
    off = terms - np.array(CENTER)
    up_terms, answer_terms = (counts @ terms).T
    squares = tuple(counts @ one for one in (off[:, 0] ** 2, off[:, 0] * off[:, 1], off[:, 1] ** 2))
    return log_mixture(
        up_terms,
        answer_terms,
        (squares[0], squares[1], squares[2]),
        counts.sum(axis=1),
        (CHANCE, CHANCE),
        np.full(len(paths), ratio),
        above=above,
    )


KINDS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1))


def _term(asked: int, answered: int, up: int) -> tuple[float, float]:
    weight = asked / CHANCE
    return LINE[0] + weight * (up - LINE[0]), LINE[1] + weight * (answered - LINE[1])


def test_lines_leave_the_estimate_without_bias() -> None:
    """Weigh all outcomes of three conversations whose signal says a lot, with lines fitted after each."""
    share, answers, ups = 0.3, 0.6, 0.4
    kinds = []
    for is_asked, (answered, up), signal in itertools.product(
        (1, 0), ((1, 1), (1, 0), (0, 0)), (3.0, -1.0)
    ):
        likely = ups if up else answers - ups if answered else 1 - answers
        liked = 0.8 if (signal > 0) == bool(up) else 0.2
        kinds.append(
            ((is_asked, answered, up, signal), (share if is_asked else 1 - share) * likely * liked)
        )
    total = np.zeros(2)
    for path in itertools.product(kinds, repeat=3):
        rows = np.array([one for one, _ in path])
        asked = _asked(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:], share)
        predicted = predictions(asked, smallest_batch=1)
        up_terms, answer_terms, _ = terms_of(asked, predicted, uses_signals=True)
        total += math.prod(chance for _, chance in path) * np.array(
            [up_terms.sum(), answer_terms.sum()]
        )
    assert total == pytest.approx([3 * ups, 3 * answers])


def test_what_is_predicted_never_depends_on_what_came_later() -> None:
    asked = _season(1, 1_000, signal=1.0)
    whole, part = predictions(asked), predictions(_first(asked, 620))
    for name, values in vars(part).items():
        assert np.array_equal(vars(whole)[name][:620], values), name


def test_predictions_are_chances_and_up_is_an_answer() -> None:
    asked = _season(2, 2_000, signal=8.0)
    predicted = predictions(asked)
    assert (predicted.up >= 0).all()
    assert (predicted.up <= predicted.answered).all()
    assert (predicted.answered <= 1).all()


def test_signals_save_ratings_and_noise_costs_none() -> None:
    def gain(signal: float) -> float:
        ours = theirs = 0.0
        for seed in range(6):
            asked = _season(seed, 4_000, signal=signal)
            predicted = predictions(asked)
            ours += sums_of(asked, predicted, uses_signals=True)[0].squares(0.6)
            theirs += sums_of(asked, predicted, uses_signals=False)[0].squares(0.6)
        return ours / theirs

    assert gain(1.2) < 0.85
    assert gain(0.0) < 1.01


def test_missing_signals_are_like_none() -> None:
    asked = _season(3, 500, signal=1.0)
    asked.signals[:] = np.nan
    predicted = predictions(asked)
    assert np.array_equal(predicted.up, predicted.center_up)


def test_where_everybody_is_asked_signals_change_nothing() -> None:
    asked = _season(4, 1_000, signal=1.0, share=1.0)
    predicted = predictions(asked)
    ours, plain = (
        sums_of(asked, predicted, uses_signals=uses_signals)[0] for uses_signals in (True, False)
    )
    assert ours.up_terms == pytest.approx(plain.up_terms)
    assert ours.squares(0.6) == pytest.approx(plain.squares(0.6))
    assert ours.ratio == pytest.approx(ours.up / ours.answered)


def test_evidence_is_the_least_over_all_means() -> None:
    asked = _season(5, 600, signal=1.0)
    sums = sums_of(asked, predictions(asked), uses_signals=True)[0]
    slopes = np.array([sums.first_chance * STEEPEST / RATIO**k for k in range(SIZES)])
    for ratio in (0.3, 0.55, 0.8):
        logs = []
        for mean in np.linspace(0, sums.eligible, 2_001):
            parts = [
                slope * (sums.up_terms - ratio * mean - r * (sums.answer_terms - mean))
                + (math.log1p(-slope / 0.3) + slope / 0.3) * 0.3**2 * sums.squares(r)
                for slope in slopes
                for r in DIRECTIONS
            ]
            most = max(parts)
            logs.append(most + math.log(sum(math.exp(part - most) for part in parts)))
        least = min(logs) - math.log(SIZES * len(DIRECTIONS))
        found = float(evidence(sums, np.array([ratio]), above=True)[0])
        assert least - 0.05 < found <= least + 1e-9


def test_the_interval_holds_the_estimate_and_narrows() -> None:
    widths = []
    for count in (200, 2_000):
        asked = _season(6, count, signal=1.0)
        sums = sums_of(asked, predictions(asked), uses_signals=True)[0]
        ((low, high),) = asked_sequences([sums])
        assert sums.ratio is not None
        assert low < sums.ratio < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_far_better_one_is_settled_and_equal_one_not() -> None:
    def of(seed: int, ratio: float) -> AskedSums:
        asked = _season(seed, 3_000, signal=1.0, ratio=ratio)
        return sums_of(asked, predictions(asked), uses_signals=True)[0]

    best, near, far = of(7, 0.7), of(8, 0.7), of(9, 0.3)
    assert compare_asked(best, far, margin=0.05, members=3).is_better
    found = compare_asked(best, near, margin=0.05, members=3)
    assert (found.is_better, found.is_within) == (False, False)
    assert found.foretold.votes is not None
    assert found.foretold.votes > 100
    assert is_excluded(best, near, 0.4, needed=5.0)


def test_a_smaller_share_later_drops_slopes_that_are_too_steep() -> None:
    first, later = _season(10, 400, signal=1.0), _season(11, 400, signal=1.0, share=0.05)
    both = AskedConversations(
        *(
            np.concatenate(pair)
            for pair in zip(vars(first).values(), vars(later).values(), strict=True)
        )
    )
    sums = sums_of(both, predictions(both), uses_signals=True)[0]
    assert (sums.first_chance, sums.least_chance) == (0.3, 0.05)
    assert np.isfinite(evidence(sums, np.linspace(0, 1, 9), above=True)).all()
    ((low, high),) = asked_sequences([sums])
    assert low < 0.6 < high


def test_nobody_asked_is_nothing_known() -> None:
    nothing = _first(_season(12, 50, signal=1.0), 0)
    assert sums_of(nothing, predictions(nothing), uses_signals=True) == []
    assert asked_sequences([]) == []
    unasked = _season(13, 50, signal=1.0, share=0.01)
    unasked.is_asked[:] = unasked.answered[:] = unasked.up[:] = 0
    (sums,) = sums_of(unasked, predictions(unasked), uses_signals=True)
    assert sums.ratio is None
    assert asked_sequences([sums]) == [(0.0, 1.0)]


def _season(
    seed: int, count: int, *, signal: float, share: float = 0.3, ratio: float = 0.6
) -> AskedConversations:
    """Draw conversations of one submission, of which a random share is asked, with a telling signal and a blind one."""
    draw = np.random.default_rng(seed)
    up = (draw.random(count) < ratio).astype(np.float64)
    signals = draw.normal(size=(count, 2))
    signals[:, 0] += signal * up
    is_asked = (draw.random(count) < share).astype(np.float64)
    return _asked(is_asked, (draw.random(count) < 0.9).astype(np.float64), up, signals, share)


def _asked(
    is_asked: NDArray[np.float64],
    answered: NDArray[np.float64],
    up: NDArray[np.float64],
    signals: NDArray[np.float64],
    share: float,
) -> AskedConversations:
    return AskedConversations(
        np.zeros(len(is_asked), dtype=np.int64),
        np.full(len(is_asked), share),
        is_asked.copy(),
        is_asked * answered,
        is_asked * answered * up,
        signals,
    )


def _first(asked: AskedConversations, count: int) -> AskedConversations:
    return AskedConversations(*(values[:count] for values in vars(asked).values()))
