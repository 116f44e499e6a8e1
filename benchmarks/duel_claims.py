"""Simulates seasons of duels until Bayes' rule says that the leader is within a margin of the best, under the right prior and wrong ones.

The same seasons as settling_duels.py: the platform's choice of pairs, its count and its test; a look every 50 duels. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
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
    results_of,
    strengths_of,
)
from guanaco_server.statistics.strength_prior import (
    Gaps,
    StrengthPrior,
    dependence_of,
    fit_strength_prior,
    gaps_of,
)

CLAIMED = 0.95
DRAWN_TO = 0.01  # six standard errors of all draws
FEW_DRAWS, FEW_DRAWN_TO = 2_000, 0.03
KNOWN = ", taken as known"
SURE = "too sure a prior"
PRIORS = {  # log odds; the strengths of these worlds have a deviation of about 0.45
    "the right prior": StrengthPrior(0.45),
    "a wide prior": StrengthPrior(1.0),
    SURE: StrengthPrior(0.2),
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


class _AllClaimed(Exception):
    """Ends a season in which every claim has been made."""


class _WatchedCounter(PlainDuelCounter):
    """Notes at each look which claims can be made."""

    def __init__(self, within: float, priors: dict[str, StrengthPrior]) -> None:
        super().__init__()
        self._within, self._priors = within, priors
        self._duels = 0
        self._users, self._first, self._second = (np.zeros(MOST_DUELS, np.int64) for _ in range(3))
        self._worths = np.zeros(MOST_DUELS)
        self.claims: dict[str, tuple[int, str]] = {}

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        super().add(user, first, second, worth)
        at = self._duels
        self._users[at], self._worths[at] = user, worth
        self._first[at], self._second[at] = int(first[-2:]), int(second[-2:])
        self._duels += 1

    def by_pair(self) -> PairCounts:
        counts = super().by_pair()
        names = sorted({name for pair in counts for name in pair})
        if len(names) == SUBMISSIONS:
            self._look(names, counts)
            if len(self.claims) == len(self._priors):
                raise _AllClaimed
        return counts

    def _look(self, names: list[str], counts: PairCounts) -> None:
        strengths = strengths_of(results_of(names, counts))
        leader = max(names, key=lambda name: (strengths[name], name))
        others = [name for name in names if name != leader]
        dependence = self._dependence([strengths[name] for name in names], leader)
        for prior, spread in self._priors.items():
            if prior in self.claims:
                continue
            if self._is_claimed(gaps_of(leader, others, counts, spread, dependence)):
                self.claims[prior] = (self._duels, leader)

    def _is_claimed(self, gaps: Gaps) -> bool:
        """Tell whether the chance is enough. Most looks are told by a single pair, or by few draws: by six standard errors at least."""
        return (
            gaps.most_within(self._within) >= CLAIMED - DRAWN_TO
            and gaps.chance_within(self._within, FEW_DRAWS) >= CLAIMED - FEW_DRAWN_TO
            and gaps.chance_within(self._within) >= CLAIMED
        )

    def _dependence(self, strengths: list[float], leader: str) -> float:
        known, held = np.asarray(strengths), slice(self._duels)
        first, second = self._first[held], self._second[held]
        expected = 0.5 + (known[first] - known[second]) / 2
        return dependence_of(
            self._users[held], first, second, self._worths[held], expected, int(leader[-2:])
        )


def seasons(seed: int, count: int, within: float, world: World) -> list[dict[str, Claim]]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        work = partial(season, within=within, world=world)
        return list(pool.map(work, range(seed, seed + count), chunksize=4))


def season(seed: int, within: float, world: World) -> dict[str, Claim]:
    """Follow one season until every claim is made, or until the always-valid one, which comes last but in rare cases."""
    priors = PRIORS | {FITTED: _fitted(seed // SEASONS_A_PAST, world)}
    priors |= {SURE + KNOWN: replace(PRIORS[SURE], doubt=0.0)}
    book = _WatchedCounter(within, priors)
    drawn: list[float] = []

    def likes(chance: random.Random) -> list[float]:
        drawn.extend(world.likes(chance))
        return drawn

    plan = DuelPlan(SUBMISSIONS, within, FLOOR, NEW_UNTIL, MOST_DUELS, world.users, likes)
    with suppress(_AllClaimed):
        duel_season(plan, seed, lambda: book)
    found = {}
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
