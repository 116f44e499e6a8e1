"""Finds submissions whose votes come from users of another kind than everybody else's: the mark of many ids with few votes.

Users do not choose whom they talk to, so an id that was made for one submission votes on that one and on no other, while
real users who stay vote on several. For each submission compare the users who voted on it alone (*narrow*) with the users
who voted on others too (*broad*): the difference of their thumbs-up ratios is about the same for all submissions, whatever
makes narrow users differ. One whose difference is far from the others' has votes that were not given by the same kind of
users. The test is a z-score between that submission's difference and the others' together.

This is a hint for a person and leaves nothing out: a model may please newcomers more than those who stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from guanaco_server.statistics.votes import VoteCount

ERROR = 0.01  # that any of the submissions is suspected by chance
FEWEST_VOTES = 10  # of each kind, below which the normal approximation says nothing


@dataclass(frozen=True)
class VoteBreadth:
    """A submission's votes by users who voted on it alone, and by those who voted on others too."""

    narrow: VoteCount
    broad: VoteCount


@dataclass(frozen=True)
class Contrast:
    """The distance of a submission's narrow votes from what the others' narrow votes lead one to expect.

    Attributes:
        excess: The difference of the ratios of narrow and broad votes, less the same difference of all others.
        z: The excess in standard errors.
        is_suspicious: Whether chance would show such an excess for any submission in at most 1 of 100 boards.
    """

    excess: float
    z: float
    is_suspicious: bool


def contrasts(board: Mapping[str, VoteBreadth]) -> dict[str, Contrast]:
    """Compare each submission that has enough votes of both kinds with all others together."""
    able = {
        name: one
        for name, one in board.items()
        if min(one.narrow.total, one.broad.total) >= FEWEST_VOTES
    }
    if len(able) < 2:
        return {}
    limit = NormalDist().inv_cdf(1 - ERROR / 2 / len(able))
    found = {}
    for name, own in able.items():
        rest = [other for one, other in able.items() if one != name]
        shift, spread = _difference(own)
        usual, usual_spread = _mean_difference(rest)
        z = (shift - usual) / math.sqrt(spread + usual_spread)
        found[name] = Contrast(shift - usual, z, abs(z) > limit)
    return found


def _mean_difference(rest: list[VoteBreadth]) -> tuple[float, float]:
    """Return the others' mean difference and its variance, weighted by how sure each is."""
    weights = [(1 / spread, shift) for shift, spread in map(_difference, rest)]
    total = sum(weight for weight, _ in weights)
    return sum(weight * shift for weight, shift in weights) / total, 1 / total


def _difference(one: VoteBreadth) -> tuple[float, float]:
    """Return the difference of the two ratios, each with a vote more of both kinds, and its variance."""
    narrow, narrow_variance = _ratio(one.narrow)
    broad, broad_variance = _ratio(one.broad)
    return narrow - broad, narrow_variance + broad_variance


def _ratio(count: VoteCount) -> tuple[float, float]:
    total = count.total + 2
    ratio = (count.up + 1) / total
    return ratio, ratio * (1 - ratio) / total
