"""Measures how often a verdict by duels takes fewer or more duels than foretold, where a user gives one, two or five on the same pair.

Two submissions, of which the leader after 100 duels is followed until it is settled to be within 5 points, or for 6,300 duels more. Users as in settling_duels.py; twenty
duels of a user on one pair are five, for no more of them count (statistics/duel_decisions.py). Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.settling_duels import WORKERS
from guanaco_server.simulation.duels import Users
from guanaco_server.statistics.duel_decisions import (
    DuelCount,
    compare_duels,
    evidence_of_duels,
    needed_evidence,
)
from guanaco_server.statistics.strength_prior import dependence_of

Floats: TypeAlias = NDArray[np.float64]

FORETOLD_AT, MOST_TIMES = 100, 64
GROWS = 1.02
WITHIN, MEMBERS = 0.05, 20
GAPS = {"equal": 0.0, "the leader 4 points better": 0.1}
TASTES = {"users who are alike": 0.0, "users with tastes (0.6)": 0.6}
EACH = (1, 2, 5)


@dataclass(frozen=True)
class World:
    gap: float
    users: Users


@dataclass(frozen=True)
class Outcome:
    """Fewer or more duels were needed than the range says: with duels taken for independent, and by their dependence."""

    below: tuple[bool, bool]
    above: tuple[bool, bool]
    dependence: float


def kinds(seed: int, count: int) -> dict[str, dict[str, float]]:
    """Measure each world; the same seed gives the same seasons."""
    found = {}
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        for (gap, at), (who, tastes), each in product(GAPS.items(), TASTES.items(), EACH):
            if not tastes and each == 2:
                continue
            world = World(at, Users(tastes=tastes, duels=each))
            ended = pool.map(partial(season, world), range(seed, seed + count), chunksize=20)
            name = f"{gap}, {who}, {each} a user"
            found[name] = summary([one for one in ended if one is not None])
    return found


def summary(found: Sequence[Outcome]) -> dict[str, float]:
    return {
        "forecasts": float(len(found)),
        "design effect": float(np.mean([one.dependence for one in found])),
        "fewer, as independent": float(np.mean([one.below[0] for one in found])),
        "more, as independent": float(np.mean([one.above[0] for one in found])),
        "fewer, by dependence": float(np.mean([one.below[1] for one in found])),
        "more, by dependence": float(np.mean([one.above[1] for one in found])),
    }


def season(world: World, seed: int) -> Outcome | None:
    """Follow a pair; None if it is settled when it would be foretold, or nothing is foretold."""
    worths = _worths(world, np.random.default_rng(seed))
    count = _count(worths[:FORETOLD_AT])
    if count.lost > count.won:
        worths, count = 1 - worths, count.seen_by_other
    part = worths[:FORETOLD_AT]
    users = np.arange(FORETOLD_AT) // world.users.duels
    one, other = np.zeros(FORETOLD_AT, np.int64), np.ones(FORETOLD_AT, np.int64)
    dependence = dependence_of(users, one, other, part, np.full(FORETOLD_AT, part.mean()), 0)
    ranges = [
        compare_duels(count, margin=WITHIN, members=MEMBERS, dependence=known)
        for known in (1.0, dependence)
    ]
    if ranges[0].is_within or ranges[0].foretold.low is None:
        return None
    taken = _taken(worths)
    lows = [one.foretold.low or 0 for one in ranges]
    highs = [one.foretold.high or math.inf for one in ranges]
    return Outcome(
        below=(taken < lows[0], taken < lows[1]),
        above=(taken > highs[0], taken > highs[1]),
        dependence=dependence,
    )


def _taken(worths: Floats) -> float:
    """Return how many duels more settle it."""
    needed, held = needed_evidence(MEMBERS), FORETOLD_AT
    while held < len(worths):
        held = min(len(worths), math.ceil(held * GROWS))
        if evidence_of_duels(_count(worths[:held]), WITHIN) >= needed:
            return held - FORETOLD_AT
    return math.inf


def _worths(world: World, chance: np.random.Generator) -> Floats:
    """Draw what duels are worth to the first of the two, those of one user one after the other."""
    users, total = world.users, FORETOLD_AT * MOST_TIMES
    tastes = chance.normal(0, math.sqrt(2) * users.tastes, total // users.duels + 1)
    spread = math.sqrt(users.spread**2 - 2 * users.tastes**2)
    felt = chance.normal(world.gap + np.repeat(tastes, users.duels)[:total], spread)
    return np.where(np.abs(felt) < users.close, 0.5, (felt > 0).astype(float))


def _count(worths: Floats) -> DuelCount:
    won, lost = int((worths == 1).sum()), int((worths == 0).sum())
    return DuelCount(won, len(worths) - won - lost, lost)
