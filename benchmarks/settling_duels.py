"""Simulates seasons of duels between 20 submissions, with the platform's own choice of pairs, its table of duels and its test.

Users like a reply with a chance from Beta(12, 8); server/guanaco_server/simulation/duels.py says how they vote. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from guanaco_server.leaderboard.ranking.duels.duel_rows import HALF, LOST, ROW, WON, NameCodes
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelVotes
from guanaco_server.simulation.duels import (
    NORMAL,
    DuelPlan,
    DuelSeasonOutcome,
    Users,
    duel_season,
)
from guanaco_server.statistics.duel_strengths import PairCounts

SUBMISSIONS = 20
MOST_DUELS = 20_000
WORKERS = 2
FLOOR, NEW_UNTIL = 0.1, 50
GAP = 0.0501
ALIKE = Users()


@dataclass(frozen=True)
class World:
    """Users, and whether the best one is preferred to all others, which are equal, by just more than the margin."""

    users: Users = ALIKE
    is_hard: bool = False

    def likes(self, chance: random.Random) -> list[float]:
        if not self.is_hard:
            return [NORMAL.inv_cdf(chance.betavariate(12, 8)) for _ in range(SUBMISSIONS)]
        low, high = 0.0, 3.0
        for _ in range(40):
            middle = (low + high) / 2
            is_enough = self.users.preferred(middle) >= 0.5 + GAP
            low, high = (low, middle) if is_enough else (middle, high)
        return [high] + [0.0] * (SUBMISSIONS - 1)


WORLDS = {
    "likes correlated by 0.5, a fifth ties": World(),
    "by 0.25": World(Users(correlation=0.25)),
    "not at all": World(Users(correlation=0.0)),
    "by 0.5, half ties": World(Users(tied=0.5)),
    "by 0.5, no ties": World(Users(tied=0.0)),
    "by 0.5, five duels a user": World(Users(duels=5)),
    "by 0.5, twenty duels a user": World(Users(duels=20)),
    "users with tastes, one duel each": World(Users(tastes=0.6)),
    "users with tastes, five duels each": World(Users(tastes=0.6, duels=5)),
    "users with tastes, twenty duels each": World(Users(tastes=0.6, duels=20)),
    "19 equal, the best just beyond the margin": World(is_hard=True),
    "the same, tastes, five duels each": World(Users(tastes=0.6, duels=5), is_hard=True),
}


class Table:
    """The duels of a season as the platform's ranking keeps and counts them."""

    def __init__(self) -> None:
        self._rows = np.zeros(MOST_DUELS, dtype=ROW)
        self._held = 0
        self._names = NameCodes()

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        """The sides take turns."""
        outcome = HALF if worth == 0.5 else WON if worth > 0.5 else LOST
        if self._held % 2:
            first, second, outcome = second, first, WON - outcome
        sides = self._names.code(first), self._names.code(second)
        self._rows[self._held] = (user, *sides, outcome, self._held, (0, 0, 0, 0))
        self._held += 1

    def by_pair(self) -> PairCounts:
        return DuelVotes((), self._names.all, self._rows[: self._held]).by_pair()


def seasons(seed: int, count: int, within: float, world: World) -> list[DuelSeasonOutcome]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        work = partial(season, within=within, world=world)
        return list(pool.map(work, range(seed, seed + count), chunksize=4))


def season(seed: int, within: float, world: World) -> DuelSeasonOutcome:
    plan = DuelPlan(SUBMISSIONS, within, FLOOR, NEW_UNTIL, MOST_DUELS, world.users, world.likes)
    return duel_season(plan, seed, Table)
