"""Top-two Thompson sampling: conversations go where they change who is first.

D. Russo, "Simple Bayesian Algorithms for Best-Arm Identification", COLT 2016: draw a ratio of each entry from its
posterior and take the best one I; with probability 1 - β draw again until another one is best, and take that. With p
the probabilities of being the best (posterior.py), entry i is so taken with the probability

    p_i (β + (1 - β) Σ_{j≠i} p_j / (1 - p_j))

which is written down here once a snapshot, so that a choice is one draw from a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.policies.shares import Shares
from guanaco_server.routing.policy import Entry

BETA = 0.5  # Russo's choice where the best one for the problem is not known
LEAST_DOUBT = 1e-18  # that the first one is the best, below which there is none
LEAST_SHARE = 1e-9  # so that a hopeless entry is still there when all others are barred


async def adaptive(
    entries: Sequence[Entry], posterior: Posterior, recency_floor: float, new_until: int
) -> Shares:
    """``recency_floor`` is the share that goes to entries with fewer than ``new_until`` ratings, as long as there are any."""
    chances = await posterior.best_probabilities([(entry.up, entry.down) for entry in entries])
    weights = [entry.weight for entry in entries]
    leading = _weighted(top_two(chances), weights)
    new = [float(entry.ratings < new_until) for entry in entries]
    if any(new):
        kept = _weighted(new, weights)
        leading = [
            (1 - recency_floor) * one + recency_floor * other
            for one, other in zip(leading, kept, strict=True)
        ]
    return Shares([entry.id for entry in entries], [max(share, LEAST_SHARE) for share in leading])


def top_two(chances: Sequence[float]) -> list[float]:
    """How often top-two Thompson sampling takes each, by its probability of being the best."""
    if len(chances) < 2:
        return list(chances)
    first = max(range(len(chances)), key=chances.__getitem__)
    others = math.fsum(one for place, one in enumerate(chances) if place != first)
    odds = [
        one / max(others if place == first else 1 - one, LEAST_DOUBT)
        for place, one in enumerate(chances)
    ]
    total = math.fsum(odds)
    shares = [
        one * (BETA + (1 - BETA) * (total - odd)) for one, odd in zip(chances, odds, strict=True)
    ]
    whole = math.fsum(shares)
    return [share / whole for share in shares]


def _weighted(shares: Sequence[float], weights: Sequence[float]) -> list[float]:
    products = [share * weight for share, weight in zip(shares, weights, strict=True)]
    total = math.fsum(products)
    return [product / total for product in products]
