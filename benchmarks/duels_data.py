"""Made votes on duels: the same seed gives the same ones, in the product's test, in the benchmark and in its peers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SUBMISSIONS = 20
TIED = 0.2
TASTE = 0.6  # standard deviation of a user's own log odds, by pair
EFFECTS = 0.5, 0.2, 0.05  # of length, markdown and side a

Columns = dict[str, NDArray[np.float64]]


def made_votes(count: int, seed: int, users: int) -> Columns:
    """Return columns: user, first, second, outcome (1, a half, 0), and three terms of style."""
    draw = np.random.default_rng(seed)
    strengths = draw.normal(0, 0.5, SUBMISSIONS)
    tastes = draw.normal(0, TASTE, (users, SUBMISSIONS))
    user = draw.integers(users, size=count)
    first = draw.integers(SUBMISSIONS, size=count)
    second = (first + 1 + draw.integers(SUBMISSIONS - 1, size=count)) % SUBMISSIONS
    terms = np.column_stack([draw.uniform(-1, 1, (count, 2)), np.ones(count)])
    liked = strengths + tastes[user]
    rows = np.arange(count)
    odds = liked[rows, first] - liked[rows, second] + terms @ np.asarray(EFFECTS)
    wins = draw.random(count) < 1 / (1 + np.exp(-odds))
    outcome = np.where(draw.random(count) < TIED, 0.5, wins.astype(np.float64))
    return {"user": user, "first": first, "second": second, "outcome": outcome, "terms": terms}
