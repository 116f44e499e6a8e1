"""Tries a random share that is asked for a rating, with signals as control variates: is the estimate right, what do the signals gain, what do they cost?

A fifth of CONVERSATIONS is asked. Each has five signals, of which one may say something and one is often missing. The product's own lines, estimate
and sequence (statistics/answer_lines.py, asked_ratio.py) are looked at every LOOK conversations. Kinds of seasons:

blind      everybody who is asked answers; no signal says anything
helpful    the same; a signal has a correlation of 0.5 with the thumb
silent     the same signal, but 60 % answer
chosen     the same signal, and who has a high one answers more often: 60 % in all
drifting   as chosen, with five submissions, days on which everybody likes and answers more or less, and the policy `decide`

and settled: two submissions of 65 % and 55 %, blind and helpful: after how many answers is it settled, with signals and without?

Called by benchmarks/evidence.py.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from guanaco_server.routing.policies.deciding import decisive
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.statistics.answer_lines import AskedConversations, Predictions, predictions
from guanaco_server.statistics.asked_ratio import (
    is_excluded,
    log_mixture,
    sums_of,
    terms_of,
)
from guanaco_server.statistics.confidence_sequences import ALPHA, shared_alpha

Floats: TypeAlias = NDArray[np.float64]
Terms: TypeAlias = tuple[Floats, Floats, tuple[Floats, Floats, Floats]]

CONVERSATIONS = 10_000
LOOK = 500
SHARE = 0.2
RATIOS = (0.6, 0.66, 0.63, 0.55, 0.45)
SIGNAL = 1.2  # how far the signal's mean moves with the thumb, for a correlation of 0.5
SIGNALS = 5
CHOICE = 0.8  # log odds of answering for each unit of the signal
DAY = 0.5  # standard deviation of a day's log odds; a look is a day
WITHIN = 0.05
SETTLED = (0.65, 0.55)
LONGEST = 40_000
POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
MEMBERS = 20


@dataclass(frozen=True)
class World:
    """``odds`` are the log odds of answering at a signal of 0; None where everybody answers."""

    signal: float
    odds: float | None = None
    choice: float = 0.0
    ratios: tuple[float, ...] = RATIOS[:1]
    has_days: bool = False


SIXTY = 0.405  # log odds of 60 %
WORLDS = {
    "blind": World(0.0),
    "helpful": World(SIGNAL),
    "silent": World(SIGNAL, SIXTY),
    "chosen": World(SIGNAL, -0.15, CHOICE),
    "drifting": World(SIGNAL, -0.15, CHOICE, RATIOS, has_days=True),
}


@dataclass(frozen=True)
class Tried:
    """A season: the mean error of its submissions at the end, their variances as estimated, and whether all sequences always held.

    ``weighed`` is the error of the sums: of all submissions, weighed by their answers.
    """

    plain_error: float
    error: float
    plain_spread: float
    spread: float
    plain_held: bool
    held: bool
    weighed: float


def kinds(seed: int, seasons: int) -> dict[str, dict[str, float]]:
    """Return of each kind the biases, the ratio of the variances, and how often all sequences always held."""
    found = {}
    with ProcessPoolExecutor() as pool:
        for place, (name, world) in enumerate(WORLDS.items()):
            seeds = ((seed, place, season) for season in range(seasons))
            tried = list(pool.map(partial(season, world), seeds, chunksize=20))
            plain = float(np.mean([one.plain_error**2 for one in tried]))
            found[name] = {
                "bias, plain": float(np.mean([one.plain_error for one in tried])),
                "bias": float(np.mean([one.error for one in tried])),
                "bias, weighed by answers": float(np.mean([one.weighed for one in tried])),
                "variance": float(np.mean([one.error**2 for one in tried])) / plain,
                "variance, as told": float(
                    np.mean([one.spread for one in tried])
                    / np.mean([one.plain_spread for one in tried])
                ),
                "held, plain": float(np.mean([one.plain_held for one in tried])),
                "held": float(np.mean([one.held for one in tried])),
            }
    return found


def settled(seed: int, seasons: int) -> dict[str, dict[str, float]]:
    """Return the median answers until the better of two is settled to be better, with signals and without."""
    found = {}
    with ProcessPoolExecutor() as pool:
        for place, name in enumerate(("blind", "helpful")):
            seeds = ((seed, 10 + place, season) for season in range(seasons))
            took = list(pool.map(partial(settling, WORLDS[name]), seeds, chunksize=5))
            found[name] = {
                "answers, plain": median(plain for plain, _ in took),
                "answers": median(ours for _, ours in took),
            }
    return found


def season(world: World, seed: tuple[int, ...]) -> Tried:
    """Try one season."""
    draw = np.random.default_rng(seed)
    asked, likely_up, likely_answered = drawn(draw, world, CONVERSATIONS)
    predicted = predictions(asked)
    alpha = ALPHA if len(world.ratios) == 1 else shared_alpha(len(world.ratios))
    errors, spreads, held = [], [], []
    for uses_signals in (False, True):
        terms = terms_of(asked, predicted, uses_signals=uses_signals)
        wrong = spread = off = total = 0.0
        is_held = True
        for place in range(len(world.ratios)):
            is_own = (asked.submissions == place).astype(np.float64)
            truth = np.cumsum(likely_up * is_own) / np.maximum(
                np.cumsum(likely_answered * is_own), 1e-9
            )
            up, answered, squares, eligible = _at_looks(terms, is_own)
            at = truth[LOOK - 1 :: LOOK]
            for above in (True, False):
                evidence = log_mixture(
                    up, answered, squares, eligible, (SHARE, SHARE), at, above=above
                )
                is_held &= bool((evidence[eligible > 0] < -np.log(alpha / 2)).all())
            if answered[-1] > 0:
                wrong += (up[-1] / answered[-1] - at[-1]) / len(world.ratios)
            off += float(up[-1] - at[-1] * answered[-1])
            total += float(answered[-1])
            spread += float(
                squares[0][-1] - 2 * at[-1] * squares[1][-1] + at[-1] ** 2 * squares[2][-1]
            )
        errors.append(float(wrong))
        spreads.append(spread)
        held.append(is_held)
    return Tried(errors[0], errors[1], spreads[0], spreads[1], held[0], held[1], off / total)


def _at_looks(
    terms: Terms, is_own: Floats
) -> tuple[Floats, Floats, tuple[Floats, Floats, Floats], Floats]:
    def until(values: Floats) -> Floats:
        found: Floats = np.cumsum(values * is_own)[LOOK - 1 :: LOOK]
        return found

    up, answered, (one, two, three) = terms
    return (
        until(up),
        until(answered),
        (until(one), until(two), until(three)),
        until(np.ones(len(is_own))),
    )


def drawn(
    draw: np.random.Generator, world: World, conversations: int
) -> tuple[AskedConversations, Floats, Floats]:
    """Draw a season, with the chance that each conversation had to answer with thumbs up, and to answer, if it was asked."""
    parts = []
    counts = np.zeros((len(world.ratios), 2))
    for _ in range(0, conversations, LOOK):
        shares = _shares(world, counts)
        submissions = draw.choice(len(world.ratios), LOOK, p=shares)
        day = draw.normal(0, DAY, 2) if world.has_days else np.zeros(2)
        ratios = np.array(world.ratios)
        chances = _logistic(np.log(ratios / (1 - ratios)) + day[0])[submissions]
        up = (draw.random(LOOK) < chances).astype(np.float64)
        signals = draw.normal(0, 1, (LOOK, SIGNALS))
        signals[:, 0] += world.signal * up
        answered = (draw.random(LOOK) < _answers(world, signals[:, 0], day[1])).astype(np.float64)
        signals[draw.random(LOOK) < 0.5, -1] = np.nan
        signals += day[0]  # what users write changes with the day too
        is_asked = (draw.random(LOOK) < SHARE).astype(np.float64)
        liked, disliked = (_mean_answers(world, moved, day[1]) for moved in (world.signal, 0.0))
        likely_up = chances * liked
        likely = likely_up + (1 - chances) * disliked
        answered *= is_asked
        parts.append((submissions, is_asked, answered, answered * up, signals, likely_up, likely))
        np.add.at(counts, submissions, np.stack([answered, answered * up], axis=1))
    places, is_asked, answered, up, signals, likely_up, likely = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    chances = np.full(len(places), SHARE)
    asked = AskedConversations(places, chances, is_asked, answered, up, signals)
    return asked, likely_up, likely


def _shares(world: World, counts: Floats) -> list[float]:
    if not world.has_days:
        return [1 / len(world.ratios)] * len(world.ratios)
    entries = [
        Entry(str(place), 0.0, int(up), int(answered - up), 1.0)
        for place, (answered, up) in enumerate(counts)
    ]
    found = decisive(entries, WITHIN, 0.1, 50).chances(frozenset())
    return [found[entry.id] for entry in entries]


def _answers(world: World, signals: Floats, day: float) -> Floats:
    if world.odds is None:
        return np.ones(len(signals))
    return _logistic(world.odds + day + world.choice * signals)


def _mean_answers(world: World, moved: float, day: float) -> float:
    """Return the chance to answer of those whose signal is normal around ``moved``, by integration."""
    return float((WEIGHTS / WEIGHTS.sum()) @ _answers(world, POINTS + moved, day))


def settling(world: World, seed: tuple[int, ...]) -> tuple[float, float]:
    """Return after how many answers the first of two is settled to be better, without signals and with them."""
    if len(world.ratios) != len(SETTLED):
        world = replace(world, ratios=SETTLED)
    asked, _, _ = drawn(np.random.default_rng(seed), world, LONGEST)
    predicted = predictions(asked)
    needed = -float(np.log(shared_alpha(MEMBERS)))
    took = []
    for uses_signals in (False, True):
        answers = float(asked.answered.sum())
        for until in range(LOOK, LONGEST + 1, LOOK):
            better, worse = sums_of(
                _first(asked, until), _first(predicted, until), uses_signals=uses_signals
            )
            if is_excluded(better, worse, 0.0, needed):
                answers = better.answered + worse.answered
                break
        took.append(answers)
    return took[0], took[1]


Columns = TypeVar("Columns", AskedConversations, Predictions)


def _first(columns: Columns, count: int) -> Columns:
    return type(columns)(*(values[:count] for values in vars(columns).values()))


def _logistic(odds: Floats | float) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.asarray(odds, dtype=np.float64)))
    return found
