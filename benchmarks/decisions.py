"""Simulates seasons until the leader is known to be within a margin of the best, with the product's own policy and tests.

A season is pure Python on the product's functions; seasons run in two processes. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from guanaco_server.routing.deciding import decisive
from guanaco_server.routing.policies import Entry
from guanaco_server.statistics.beta_prior import BetaPrior, chance_within
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.decisions import compare
from guanaco_server.statistics.votes import VoteCount

SUBMISSIONS = 20
EVERY = 100  # ratings between two looks, and between two snapshots
MOST_RATINGS = 40_000
WORKERS = 2
CLAIMED = 0.95

PRIORS = {
    "right": BetaPrior(12, 8, 1),
    "flat": BetaPrior(1, 1),
    "too sure": BetaPrior(60, 40, 1),
    "too low": BetaPrior(4, 8, 1),
}


@dataclass(frozen=True)
class Decided:
    """After how many ratings a claim was made, None if never, and whether it was wrong."""

    after: int | None
    is_wrong: bool


Season = dict[str, Decided]


def seasons(seed: int, count: int, within: float) -> list[Season]:
    """Simulate seasons; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return list(
            pool.map(partial(season, within=within), range(seed, seed + count), chunksize=4)
        )


def season(seed: int, within: float) -> Season:
    """Follow one season until every claim has been made."""
    chance = random.Random(seed)
    truth = [chance.betavariate(12, 8) for _ in range(SUBMISSIONS)]
    best = max(truth)
    up, total = [0] * SUBMISSIONS, [0] * SUBMISSIONS
    found: Season = {}
    asked: dict[str, Callable[[list[VoteCount], int], bool]] = {
        "always valid": partial(_is_shown, within=within),
        **{
            f"Bayes, {name} prior": partial(_is_likely, within=within, prior=prior)
            for name, prior in PRIORS.items()
        },
    }
    while len(found) < len(asked) and sum(total) < MOST_RATINGS:
        entries = [
            Entry(str(place), 0.0, up[place], total[place] - up[place], 1.0)
            for place in range(SUBMISSIONS)
        ]
        chances = decisive(entries, within, 0.1, 50).chances(frozenset())
        weights = [chances[str(place)] for place in range(SUBMISSIONS)]
        for place in chance.choices(range(SUBMISSIONS), weights, k=EVERY):
            total[place] += 1
            up[place] += chance.random() < truth[place]
        votes = [VoteCount(up[place], total[place] - up[place]) for place in range(SUBMISSIONS)]
        leader = _leader(votes)
        for name, is_claimed in asked.items():
            if name not in found and is_claimed(votes, leader):
                found[name] = Decided(sum(total), truth[leader] < best - within)
    return {name: found.get(name, Decided(None, False)) for name in asked}


def _leader(votes: Sequence[VoteCount]) -> int:
    """Return the first on the board: the highest lower end."""
    alpha = shared_alpha(len(votes))
    return max(
        (place for place, one in enumerate(votes) if one.total),
        key=lambda place: proportion_sequence(votes[place].up, votes[place].total, alpha)[0],
    )


def _is_shown(votes: list[VoteCount], leader: int, within: float) -> bool:
    others = [place for place in range(len(votes)) if place != leader]
    others.sort(key=lambda place: -votes[place].up / max(votes[place].total, 1))
    return all(
        votes[place].total > 0
        and compare(
            votes[leader], votes[place], margin=within, members=len(votes), foretells=False
        ).is_within
        for place in others
    )


def _is_likely(votes: list[VoteCount], leader: int, within: float, prior: BetaPrior) -> bool:
    others = [one for place, one in enumerate(votes) if place != leader]
    return chance_within(votes[leader], others, within, prior) >= CLAIMED
