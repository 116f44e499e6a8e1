"""Tries signals of conversations as control variates of the thumbs: what they gain, and when they mislead.

All conversations have a signal, say a length or a reward model's score; some have a rating. The corrected share of thumbs up is

    mean over all conversations of g(x)  +  mean over the rated ones of (y - g(x))

(prediction-powered inference; A. Angelopoulos and others, Science 382 (2023)). Here g is a line around the mean signal, and both the mean and the slope at
each conversation are fitted to earlier ratings only, the slope drawn to 0 by RIDGE ratings, which never loses much. With the best slope, a correlation r and the share s of
conversations rated, the variance is 1 - r²(1 - s) of the plain one: of r = 0.5 and s = 0.2 that is 800 ratings for 1,000, and 750 however many are not rated.
Three kinds of
seasons of one submission, looked at every LOOK conversations with the asymptotic sequence of the product's strengths:

blind      ratings of a random fifth of the conversations; the signal says nothing
helpful    the same; the signal has a correlation of 0.5 with the thumb
chosen     the same signal, but who has a high one rates more often, as users do who stay long

Called by benchmarks/evidence.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from guanaco_server.statistics.confidence_sequences import ALPHA, asymptotic_multiple

Floats: TypeAlias = NDArray[np.float64]

CONVERSATIONS = 10_000
LOOK = 500
RATED = 0.2
MEAN = 0.6
SIGNAL = 1.2  # how far the signal's mean moves with the thumb, for a correlation of 0.5
CHOICE = 0.8  # log odds of rating for each unit of the signal
RIDGE = 20.0
FEWEST = 30  # ratings before the first look


@dataclass(frozen=True)
class Tried:
    """A season: if the sequences held at every look, and the errors at the end."""

    plain_held: bool
    corrected_held: bool
    plain_error: float
    corrected_error: float


def kinds(seed: int, seasons: int) -> dict[str, dict[str, float]]:
    """Return of each kind how many corrected ratings do as much as 1,000 plain ones, both biases, and how often both held."""
    found = {}
    for place, (name, signal, choice) in enumerate(
        (("blind", 0.0, 0.0), ("helpful", SIGNAL, 0.0), ("chosen", SIGNAL, CHOICE))
    ):
        draw = np.random.default_rng((seed, place))
        tried = [_season(draw, signal, choice) for _ in range(seasons)]
        plain = float(np.mean([one.plain_error**2 for one in tried]))
        corrected = float(np.mean([one.corrected_error**2 for one in tried]))
        found[name] = {
            "ratings for 1,000": 1_000 * corrected / plain,
            "bias, plain": float(np.mean([one.plain_error for one in tried])),
            "bias, corrected": float(np.mean([one.corrected_error for one in tried])),
            "held, plain": float(np.mean([one.plain_held for one in tried])),
            "held, corrected": float(np.mean([one.corrected_held for one in tried])),
        }
    return found


def _season(draw: np.random.Generator, signal: float, choice: float) -> Tried:
    """The truth is the mean of those who rate: what the board promises."""
    up = (draw.random(CONVERSATIONS) < MEAN).astype(np.float64)
    x = draw.normal(0, 1, CONVERSATIONS) + signal * up
    rated = draw.random(CONVERSATIONS) < _rates(x, choice)
    truth = _truth(signal, choice)
    terms = _predictions(x, up, rated)
    plain_held = corrected_held = True
    for until in range(LOOK, CONVERSATIONS + 1, LOOK):
        is_rated = rated[:until]
        count = int(is_rated.sum())
        if count < FEWEST:
            continue
        multiple = asymptotic_multiple(float(count), ALPHA)
        y, g = up[:until][is_rated], terms[:until]
        plain = float(y.mean())
        plain_held &= abs(plain - truth) <= multiple * float(y.std()) / np.sqrt(count)
        left = y - g[is_rated]
        corrected = float(g.mean() + left.mean())
        error = np.sqrt(left.var() / count + g.var() / until)
        corrected_held &= abs(corrected - truth) <= multiple * float(error)
    return Tried(plain_held, corrected_held, plain - truth, corrected - truth)


def _predictions(x: Floats, up: Floats, rated: NDArray[np.bool_]) -> Floats:
    """Return g of each conversation, from what was rated before it."""

    def before(values: Floats) -> Floats:
        return np.concatenate([[0.0], np.cumsum(values * rated)[:-1]])

    n = before(np.ones(len(x)))
    total = np.maximum(n, 1)
    mean_x, mean_y = before(x) / total, before(up) / total
    across = before(x * up) - n * mean_x * mean_y
    along = before(x * x) - n * mean_x**2
    slope = across / (along + RIDGE)
    found: Floats = slope * (x - mean_x)
    return found


def _truth(signal: float, choice: float) -> float:
    """Return the mean thumb of those who rate, by integration over the signal."""
    if not choice:
        return MEAN
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    rates = [float(weights @ _rates(points + shift, choice)) for shift in (0.0, signal)]
    return MEAN * rates[1] / (MEAN * rates[1] + (1 - MEAN) * rates[0])


def _rates(x: Floats, choice: float) -> Floats:
    """Return the chance that a conversation with such a signal is rated."""
    found: Floats = 1 / (1 + (1 - RATED) / RATED * np.exp(choice * (1 - x)))
    return found
