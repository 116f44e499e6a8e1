"""Simulates seasons of duels until the leader is known to be within a margin of the best, with the product's own choice of pairs and its test.

A user likes a reply with a chance from Beta(12, 8): where what they feel, which is normal, is above 0. What one user feels for two replies
has a correlation. They prefer the reply for which they feel more, and call it a tie where the two are close. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import math
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

from benchmarks.decisions import Decided
from guanaco_server.routing.duelling import Duelling, duelling
from guanaco_server.statistics.duel_decisions import DuelCount, compare_duels
from guanaco_server.statistics.duel_strengths import NO_DUEL, duels_between, leader_of

SUBMISSIONS = 20
NAMES = tuple(f"submission-{place:02}" for place in range(SUBMISSIONS))
EVERY = 50  # duels between two looks, and between two plans
MOST_DUELS = 20_000
WORKERS = 2
FLOOR, NEW_UNTIL = 0.1, 50
NORMAL = NormalDist()
PER_USER = 5  # duels of a user with tastes


@dataclass(frozen=True)
class World:
    """The ways in which users differ. ``tastes`` is the deviation of what each user feels for each submission, in all of their duels alike.

    With a ``gap`` the best one is preferred to all others, which are equal, by just so much.
    """

    correlation: float = 0.5
    tied: float = 0.2
    tastes: float = 0.0
    gap: float | None = None


WORLDS = {
    "likes correlated by 0.5, a fifth ties": World(),
    "by 0.25": World(correlation=0.25),
    "not at all": World(correlation=0.0),
    "by 0.5, half ties": World(tied=0.5),
    "by 0.5, no ties": World(tied=0.0),
    "by 0.5, users with tastes, five duels each": World(tastes=0.6),
    "19 equal, the best just beyond the margin": World(gap=0.0501),
}


@dataclass(frozen=True)
class Truth:
    """The chances behind a season's votes."""

    world: World
    liked: tuple[float, ...]

    @property
    def spread(self) -> float:
        return math.sqrt(2 * (1 - self.world.correlation))

    @property
    def close(self) -> float:
        return self.spread * NORMAL.inv_cdf(0.5 + self.world.tied / 2)

    def preferred(self, first: int, second: int) -> float:
        """Return the chance to be preferred, a tie being half of it."""
        gap = self.liked[first] - self.liked[second]
        won = 1 - NORMAL.cdf((self.close - gap) / self.spread)
        lost = NORMAL.cdf((-self.close - gap) / self.spread)
        return (1 + won - lost) / 2


def seasons(seed: int, count: int, within: float, world: World) -> list[Decided]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        work = partial(season, within=within, world=world)
        return list(pool.map(work, range(seed, seed + count), chunksize=4))


def season(seed: int, within: float, world: World) -> Decided:
    chance = random.Random(seed)
    truth = _truth(chance, world)
    counts: dict[tuple[str, str], DuelCount] = {}
    votes = Votes(chance, truth)
    for held in range(0, MOST_DUELS, EVERY):
        leader = leader_of(NAMES, counts)
        if leader is not None and _is_shown(counts, leader, within):
            ours = NAMES.index(leader)
            best = max(range(SUBMISSIONS), key=truth.liked.__getitem__)
            return Decided(held, truth.preferred(ours, best) < 0.5 - within)
        plan = duelling(NAMES, counts, within, FLOOR, NEW_UNTIL)
        for _ in range(EVERY):
            first, second = sorted(_pair(chance, plan))
            outcome = votes.draw(NAMES.index(first), NAMES.index(second))
            before = counts.get((first, second), NO_DUEL)
            counts[first, second] = before.plus(outcome)
    return Decided(None, False)


def _truth(chance: random.Random, world: World) -> Truth:
    if world.gap is None:
        return Truth(
            world,
            tuple(NORMAL.inv_cdf(chance.betavariate(12, 8)) for _ in range(SUBMISSIONS)),
        )
    low, high = 0.0, 3.0
    for _ in range(40):
        middle = (low + high) / 2
        is_enough = Truth(world, (middle, 0.0)).preferred(0, 1) >= 0.5 + world.gap
        low, high = (low, middle) if is_enough else (middle, high)
    return Truth(world, (high,) + (0.0,) * (SUBMISSIONS - 1))


class Votes:
    """Draws outcomes; users with tastes keep these for their duels."""

    def __init__(self, chance: random.Random, truth: Truth) -> None:
        self._chance = chance
        self._truth = truth
        self._held = 0
        self._tastes: dict[int, float] = {}

    def draw(self, first: int, second: int) -> float:
        """Return 1 if the first was preferred, 0 if the second was, a half for a tie."""
        taste = self._truth.world.tastes
        if self._held % PER_USER == 0:
            self._tastes = {}
        self._held += 1
        gap = self._truth.liked[first] - self._truth.liked[second]
        spread = self._truth.spread
        if taste:
            gap += self._taste(first) - self._taste(second)
            spread = math.sqrt(spread**2 - 2 * taste**2)  # of which the tastes are a part
        felt = self._chance.gauss(gap, spread)
        return 0.5 if abs(felt) < self._truth.close else float(felt > 0)

    def _taste(self, place: int) -> float:
        if place not in self._tastes:
            self._tastes[place] = self._chance.gauss(0, self._truth.world.tastes)
        return self._tastes[place]


def _pair(chance: random.Random, plan: Duelling) -> tuple[str, str]:
    (first,) = chance.choices(list(plan.shares), list(plan.shares.values()))
    if plan.leader is not None:
        return plan.leader, first
    return first, chance.choice([name for name in NAMES if name != first])


def _is_shown(counts: dict[tuple[str, str], DuelCount], leader: str, within: float) -> bool:
    return all(
        compare_duels(
            duels_between(counts, leader, name), margin=within, members=SUBMISSIONS, foretells=False
        ).is_within
        for name in NAMES
        if name != leader
    )
