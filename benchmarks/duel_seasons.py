"""Simulates seasons of duels between 20 submissions, by users who differ, ranked by the product's own rule at every look.

The truth that an interval has to hold is the strength that the model takes in the limit: users' tastes make each pair's chance
what it is on average, and the model fits those chances. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.duel_fraud import recorded
from guanaco.competitions import RankingRule
from guanaco_server.leaderboard.ranking.rules import ELO, ELO_AVERAGE, standings
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import (
    CodedVotes,
    Strengths,
    logistic,
)
from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels, fit, maximum
from guanaco_server.simulation.duels import Users
from guanaco_server.statistics.intervals import Z_95

SUBMISSIONS = 20
DUELS = 10_000
EVERY = 500
PER_USER = 5  # duels, one after the other
SPREAD = 0.4  # standard deviation of the strengths
TASTE = 0.8  # and of each user's own log odds for each submission
TIED = 0.2
WORKERS = 2
PLANNED_DUELS = 5_000
USERS = Users(tastes=0.6, duels=PER_USER)


@dataclass(frozen=True)
class Held:
    """A season: for which share of the submissions the interval held at every look, for one look each, and if it did for all."""

    every_look: float
    one_look: float
    is_each: bool


def seasons(seed: int, count: int) -> list[Held]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return list(pool.map(season, range(seed, seed + count), chunksize=4))


def season(seed: int) -> Held:
    draw = np.random.default_rng(seed)
    strengths = draw.normal(0, SPREAD, SUBMISSIONS)
    truth = limit_of(strengths)
    users = np.arange(DUELS) // PER_USER
    tastes = draw.normal(0, TASTE, (users[-1] + 1, SUBMISSIONS))
    first = draw.integers(SUBMISSIONS, size=DUELS)
    second = (first + 1 + draw.integers(SUBMISSIONS - 1, size=DUELS)) % SUBMISSIONS
    liked = strengths + tastes[users]
    rows = np.arange(DUELS)
    is_won = draw.random(DUELS) < logistic(liked[rows, first] - liked[rows, second])
    outcomes = np.where(draw.random(DUELS) < TIED, 0.5, is_won.astype(np.float64))
    every, once = np.ones(SUBMISSIONS, bool), np.ones(SUBMISSIONS, bool)
    for until in range(EVERY, DUELS + 1, EVERY):
        duels = CodedDuels(
            users[:until],
            first[:until],
            second[:until],
            outcomes[:until],
            np.ones(until),
            np.zeros((until, 0)),
        )
        found = fit([], SUBMISSIONS, duels)
        low, high = _intervals(found)
        every &= (low <= truth) & (truth <= high)
        once &= np.abs(np.asarray(found.values) - truth) <= Z_95 * np.asarray(found.errors)
    return Held(float(every.mean()), float(once.mean()), bool(every.all()))


def planned_seasons(seed: int, count: int) -> list[Held]:
    """Simulate seasons on the pairs that `decide` chooses, weighted as the product weights them; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return list(pool.map(planned_season, range(seed, seed + count), chunksize=2))


def planned_season(seed: int) -> Held:
    """Compare the strengths with those that the same duels have by the mean user: as often as each pair was held until then."""
    likes, given = recorded(seed, USERS, PLANNED_DUELS)
    names = {name: place for place, name in enumerate(likes)}
    users = np.asarray([int(user[1:]) for user, _, _, _ in given])
    users -= users.min()
    first = np.asarray([names[one] for _, one, _, _ in given])
    second = np.asarray([names[other] for _, _, other, _ in given])
    outcomes = np.asarray([worth for _, _, _, worth in given])
    means = np.asarray([USERS.preferred(likes[one] - likes[other]) for _, one, other, _ in given])
    every, once = np.ones(SUBMISSIONS, bool), np.ones(SUBMISSIONS, bool)
    for until in range(EVERY, PLANNED_DUELS + 1, EVERY):
        pairs = np.stack([users[:until], first[:until], second[:until]])
        _, which, shares = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        duels = CodedDuels(
            users[:until],
            first[:until],
            second[:until],
            outcomes[:until],
            1 / shares[which.ravel()],
            np.zeros((until, 0)),
        )
        truth = np.asarray(fit([], SUBMISSIONS, replace(duels, outcomes=means[:until])).values)
        found = fit([], SUBMISSIONS, duels)
        low, high = _intervals(found)
        every &= (low <= truth) & (truth <= high)
        once &= np.abs(np.asarray(found.values) - truth) <= Z_95 * np.asarray(found.errors)
    return Held(float(every.mean()), float(once.mean()), bool(every.all()))


def limit_of(strengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the strengths that fit what users prefer on average, with each pair met as often."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    gaps = strengths[:, None] - strengths[None, :]
    chances = logistic(gaps[:, :, None] + np.sqrt(2) * TASTE * points) @ (weights / weights.sum())
    won = 1_000_000 * (TIED / 2 + (1 - TIED) * chances)
    np.fill_diagonal(won, 0)
    nobody, nothing = np.zeros(0, np.int64), np.zeros(0)
    none = CodedDuels(nobody, nobody, nobody, nothing, nothing, np.zeros((0, 0)))
    values, _ = maximum(won, np.zeros(won.shape), none, 1e-3, 0.0)
    found: NDArray[np.float64] = values - values.mean()
    return found


def _intervals(found: Strengths) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the board's intervals, in log odds."""
    names = [f"submission-{place}" for place in range(SUBMISSIONS)]

    def fitted(_votes: object, _size: int) -> Strengths:
        return found

    by_user: list[CodedVotes] = []
    board = standings(RankingRule.BRADLEY_TERRY, {}, names, by_user, fit=fitted)
    scores = {one.submission_id: one.score for one in board}
    low = np.asarray([scores[name].low for name in names])
    high = np.asarray([scores[name].high for name in names])
    return (low - ELO_AVERAGE) / ELO, (high - ELO_AVERAGE) / ELO
