"""Simulates seasons until the leader is known to be within a margin of the best, with the product's own policy and tests.

A season is pure Python on the product's functions; seasons run in two processes. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import NormalDist, fmean

from guanaco_server.routing.policies.deciding import decisive
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.statistics.beta_prior import BetaPrior, chance_within, fit_prior
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.decisions import compare
from guanaco_server.statistics.votes import VoteCount

SUBMISSIONS = 20
EVERY = 100  # ratings between two looks, and between two snapshots
MOST_RATINGS = 40_000
WORKERS = 2
CLAIMED = 0.95

PRIORS = {
    "the right prior": BetaPrior(12, 8, 1),
    "a flat prior": BetaPrior(1, 1),
    "too sure a prior": BetaPrior(60, 40, 1),
    "too low a prior": BetaPrior(4, 8, 1),
}
FITTED = {  # to how many submissions of past seasons, whose ratios are spread so
    "fitted to 10 submissions": (10, (12, 8)),
    "fitted to 100 submissions": (100, (12, 8)),
    "fitted to 100 worse ones": (100, (8, 12)),
    "fitted to 100 that are more alike": (100, (60, 40)),
}
SEASONS_A_PAST = 20  # one fit takes a tenth of a season's time
PAST_VOTES = 200  # of each submission of a past season
NODES = 64  # of a user's taste, for the mean over users


@dataclass(frozen=True)
class Users:
    """How many submissions a user rates, and the standard deviation of the log odds that all their votes share."""

    ratings: int = 1
    taste: float = 0.0

    def mean(self, ratio: float) -> float:
        """Return the share of all users who like a submission that the user without a taste likes so often."""
        if not self.taste:
            return ratio
        nodes = [NormalDist().inv_cdf((node + 0.5) / NODES) for node in range(NODES)]
        return fmean(self.chance(ratio, node) for node in nodes)

    def chance(self, ratio: float, node: float) -> float:
        odds = math.log(ratio / (1 - ratio)) + self.taste * node
        return 1 / (1 + math.exp(-odds))


WORLDS = {"": Users(), ", five ratings of each user, who have tastes": Users(5, 0.8)}


@dataclass(frozen=True)
class Decided:
    """After how many ratings a claim was made, None if never, and whether it was wrong."""

    after: int | None
    is_wrong: bool


Season = dict[str, Decided]


def seasons(seed: int, count: int, within: float, users: Users) -> list[Season]:
    """Simulate seasons; the same seed gives the same ones."""
    work = partial(season, within=within, users=users)
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, range(seed, seed + count), chunksize=4))


def season(seed: int, within: float, users: Users) -> Season:
    """Follow one season until every claim has been made."""
    chance = random.Random(seed)
    ratios = [chance.betavariate(12, 8) for _ in range(SUBMISSIONS)]
    truth = [users.mean(ratio) for ratio in ratios]
    best = max(truth)
    past = seed // SEASONS_A_PAST
    priors = PRIORS | {name: _fitted(past, *FITTED[name]) for name in FITTED}
    taste, left = 0.0, 0
    up, total = [0] * SUBMISSIONS, [0] * SUBMISSIONS
    found: Season = {}
    asked: dict[str, Callable[[list[VoteCount], int], bool]] = {
        "always valid": partial(is_shown, within=within),
        **{
            f"Bayes, {name}": partial(is_likely, within=within, prior=prior)
            for name, prior in priors.items()
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
            if not left:
                taste, left = chance.gauss(0, 1), users.ratings
            left -= 1
            total[place] += 1
            up[place] += chance.random() < users.chance(ratios[place], taste)
        votes = [VoteCount(up[place], total[place] - up[place]) for place in range(SUBMISSIONS)]
        leader = leader_of(votes)
        for name, is_claimed in asked.items():
            if name not in found and is_claimed(votes, leader):
                found[name] = Decided(sum(total), truth[leader] < best - within)
    return {name: found.get(name, Decided(None, False)) for name in asked}


@lru_cache
def _fitted(seed: int, submissions: int, spread: tuple[int, int]) -> BetaPrior:
    """Fit a prior as the platform does, to the votes of past seasons."""
    chance = random.Random(f"past {seed}")
    past = []
    for _ in range(submissions):
        ratio = chance.betavariate(*spread)
        up = sum(chance.random() < ratio for _ in range(PAST_VOTES))
        past.append(VoteCount(up, PAST_VOTES - up))
    return fit_prior(past)


def leader_of(votes: Sequence[VoteCount]) -> int:
    """Return the first on the board: the highest lower end."""
    alpha = shared_alpha(len(votes))
    return max(
        (place for place, one in enumerate(votes) if one.total),
        key=lambda place: proportion_sequence(votes[place].up, votes[place].total, alpha)[0],
    )


def is_shown(votes: list[VoteCount], leader: int, within: float) -> bool:
    others = [place for place in range(len(votes)) if place != leader]
    others.sort(key=lambda place: -votes[place].up / max(votes[place].total, 1))
    return all(
        votes[place].total > 0
        and compare(
            votes[leader], votes[place], margin=within, members=len(votes), foretells=False
        ).is_within
        for place in others
    )


def is_likely(votes: list[VoteCount], leader: int, within: float, prior: BetaPrior) -> bool:
    others = [one for place, one in enumerate(votes) if place != leader]
    return chance_within(votes[leader], others, within, prior) >= CLAIMED
