"""Simulates seasons of duels until Bayes' rule says that the leader is within a margin of the best, under the right prior and wrong ones.

The same seasons as settling_duels.py: the platform's choice of pairs, its count and its test; a look every 50 duels. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import pstdev

import numpy as np

from benchmarks.settling_duels import (
    FLOOR,
    MOST_DUELS,
    NEW_UNTIL,
    SUBMISSIONS,
    WORKERS,
    World,
)
from guanaco_server.simulation.duels import NORMAL, DuelPlan, PlainDuelCounter, Users, duel_season
from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.duel_strengths import (
    NO_DUEL,
    PairCounts,
    leader_of,
    results_of,
    strengths_of,
)
from guanaco_server.statistics.strength_prior import (
    StrengthPrior,
    chance_within_by_duels,
    dependence_of,
    fit_strength_prior,
)

CLAIMED = 0.95
PRIORS = {  # log odds; the strengths of these worlds have a deviation of about 0.45
    "the right prior": StrengthPrior(0.45),
    "a wide prior": StrengthPrior(1.0),
    "too sure a prior": StrengthPrior(0.2),
}
FITTED = "fitted to 40 submissions of past seasons"
PAST_SEASONS, PAST_DUELS = 2, 2_000
SEASONS_A_PAST = 20

WORLDS = {
    "": World(),
    ", users with tastes, five duels each": World(Users(tastes=0.6, duels=5)),
}


@dataclass(frozen=True)
class Claim:
    """After how many duels a claim was made, None if never, and whether it was wrong."""

    after: int | None
    is_wrong: bool


class _WatchedCounter(PlainDuelCounter):
    """Notes at each look which claims can be made."""

    def __init__(self, within: float, priors: dict[str, StrengthPrior]) -> None:
        super().__init__()
        self._within, self._priors = within, priors
        self._duels = 0
        self._votes: list[tuple[int, int, int, float]] = []
        self.claims: dict[str, tuple[int, str]] = {}

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        super().add(user, first, second, worth)
        self._duels += 1
        self._votes.append((user, int(first[-2:]), int(second[-2:]), worth))

    def by_pair(self) -> PairCounts:
        counts = super().by_pair()
        names = sorted({name for pair in counts for name in pair})
        leader = leader_of(names, counts)
        if leader is not None and len(names) == SUBMISSIONS:
            others = [name for name in names if name != leader]
            dependence = self._dependence(names, counts, leader)
            for prior, spread in self._priors.items():
                if prior not in self.claims:
                    found = chance_within_by_duels(
                        leader, others, counts, self._within, spread, dependence
                    )
                    if found >= CLAIMED:
                        self.claims[prior] = (self._duels, leader)
        return counts

    def _dependence(self, names: list[str], counts: PairCounts, leader: str) -> float:
        strengths = strengths_of(results_of(names, counts))
        known = np.asarray([strengths[name] for name in names])
        columns = np.asarray(self._votes)
        users, first, second = (columns[:, place].astype(np.int64) for place in range(3))
        expected = 0.5 + (known[first] - known[second]) / 2
        return dependence_of(users, first, second, columns[:, 3], expected, int(leader[-2:]))


def seasons(seed: int, count: int, within: float, world: World) -> list[dict[str, Claim]]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        work = partial(season, within=within, world=world)
        return list(pool.map(work, range(seed, seed + count), chunksize=4))


def season(seed: int, within: float, world: World) -> dict[str, Claim]:
    """Follow one season until the always-valid claim, which comes last but in rare cases."""
    priors = PRIORS | {FITTED: _fitted(seed // SEASONS_A_PAST, world)}
    book = _WatchedCounter(within, priors)
    drawn: list[float] = []

    def likes(chance: random.Random) -> list[float]:
        drawn.extend(world.likes(chance))
        return drawn

    plan = DuelPlan(SUBMISSIONS, within, FLOOR, NEW_UNTIL, MOST_DUELS, world.users, likes)
    ended = duel_season(plan, seed, lambda: book)
    found = {"always valid": Claim(ended.after, ended.is_wrong)}
    for name in priors:
        after, leader = book.claims.get(name, (None, None))
        is_wrong = False
        if leader is not None:
            gap = drawn[int(leader.rpartition("-")[2])] - max(drawn)
            is_wrong = world.users.preferred(gap) < 0.5 - within
        found[f"Bayes, {name}"] = Claim(after, is_wrong)
    return found


@lru_cache
def _fitted(seed: int, world: World) -> StrengthPrior:
    """Fit a prior as the platform does, to the duels of past seasons, here of pairs at random."""
    chance = random.Random(f"past {seed}")
    past = []
    for _ in range(PAST_SEASONS):
        likes = world.likes(chance)
        counts: Counter[tuple[int, int, float]] = Counter()
        for _ in range(PAST_DUELS):
            one, other = sorted(chance.sample(range(SUBMISSIONS), 2))
            felt = chance.gauss(likes[one] - likes[other], world.users.spread)
            close = world.users.close
            counts[one, other, 0.5 if abs(felt) < close else float(felt > 0)] += 1
        season: dict[tuple[str, str], DuelCount] = {}
        for (one, other, worth), held in counts.items():
            pair = (f"s{one:02}", f"s{other:02}")
            for _ in range(held):
                season[pair] = season.get(pair, NO_DUEL).plus(worth)
        past.append(season)
    return fit_strength_prior(past)


def right_spread(world: World, draws: int = 20_000) -> float:
    """Return the deviation of strengths in log odds: of the chance to be preferred to an average one."""
    chance = random.Random(1)
    logits: list[float] = []
    while len(logits) < draws:
        preferred = [
            world.users.preferred(one - NORMAL.inv_cdf(0.6)) for one in world.likes(chance)
        ]
        logits += [math.log(p / (1 - p)) for p in preferred]
    return pstdev(logits)
