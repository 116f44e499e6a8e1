"""Computes what the next ratings of each submission are worth for a competition's verdict, for each second of a GPU.

The verdict is that the leader is within a margin of the best (statistics/decisions.py). A pair of the leader and another one is open while its
evidence J lacks something of what the verdict needs, b. What is not known of the verdict is taken to be

    U = sum over open pairs of (b - J)² / b

squares, because the verdict needs every pair, and the one that lacks most has the longest way. With n ratings of the leader and m of
the other one, d the lead and v = p(1 - p), J grows like

    W(n, m) = (d + margin)² / 2 (v / n + v' / m)

(routing/policies/deciding.py), so k further ratings of a submission are expected to take some U(k) away: one pair's if it is another one, all pairs'
if it leads. One that has fewer than HEARD ratings takes b away with the last that is missing, for without it there is no verdict. The worth is

    max over k of  U(k) / GPUs * (seconds to wake it, if it sleeps + k * seconds of a rating)

with the stay k for which a wake pays best. That is the index of a bandit whose arms cost something to change (M. Asawa, D. Teneketzis,
"Multi-Armed Bandits with Switching Penalties", IEEE Transactions on Automatic Control, 1996), looking ahead with the ratios as they are. Who is
awake pays nothing to stay, so nobody is woken for ratings that are worth less than the change. GPU hours by this rule: docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from guanaco_server.statistics.confidence_sequences import ALPHA, shared_alpha
from guanaco_server.statistics.decisions import evidence
from guanaco_server.statistics.duel_strengths import PairCounts
from guanaco_server.statistics.votes import VoteCount

HEARD = 20  # ratings before which a submission is not compared, as in routing/policies/deciding.py
STAYS = tuple(4 * 2**power for power in range(12))  # ratings of a stay that are tried: 4 to 8,192
TEST_TAKES = 2.5  # about how much less the always valid test says than W
CLEARLY = 1.1  # times more that a change has to be worth, for estimates are noisy
PRIOR_UP, PRIOR_DOWN = 3.0, 2.0


@dataclass(frozen=True)
class Race:
    """A running competition: its margin, and the votes of those that take conversations; ``duels`` where these settle who is best.

    ``members`` share the error: all who ever took part, if more than those with votes here did.
    """

    margin: float
    votes: Mapping[str, VoteCount]
    duels: PairCounts | None = None
    members: int | None = None

    @property
    def ratings(self) -> int:
        """Return how many votes have come by which the verdict is found."""
        if self.duels is not None:
            return sum(pair.total for pair in self.duels.values())
        return sum(votes.total for votes in self.votes.values())

    def heard(self) -> dict[str, int]:
        """Return how many of them each that takes part has; a duel counts for both."""
        if self.duels is None:
            return {name: votes.total for name, votes in self.votes.items()}
        found = dict.fromkeys(self.votes, 0)
        for pair, duels in self.duels.items():
            for name in pair:
                if name in found:
                    found[name] += duels.total
        return found


@dataclass(frozen=True)
class Contender:
    """A submission in a race. ``wake_s`` are the seconds that an engine is lost for by waking it, ``rating_s`` those that a rating takes of it.

    ``is_due``: it has slept for so long that it is heard again like a new one.
    """

    submission_id: str
    votes: VoteCount
    is_awake: bool
    wake_s: float
    rating_s: float
    gpus: int = 1
    is_due: bool = False
    owner: str = ""  # the submission, where this is a version of it

    @property
    def name(self) -> str:
        return self.owner or self.submission_id

    @property
    def has_enough_votes(self) -> bool:
        return self.votes.total >= HEARD


@dataclass(frozen=True)
class Worth:
    """``rate`` is what a second of a GPU takes away of U; ``ratings`` is the stay for which it is so."""

    rate: float = 0.0
    ratings: int = 0


NOTHING = Worth()


def worths(
    contenders: Sequence[Contender],
    margin: float,
    alpha: float = ALPHA,
    members: int | None = None,
) -> dict[str, Worth]:
    """Return what the next ratings of each contender of one competition are worth; nothing for one that is alone.

    ``members`` share the error: all who ever took part, if more than the contenders did.
    """
    if len(contenders) < 2:
        return {one.submission_id: NOTHING for one in contenders}
    return _Race(contenders, margin, alpha, members or len(contenders)).worths()


def best_change(
    worth: Mapping[str, Worth], movable: Iterable[str], asleep: Iterable[str]
) -> tuple[str, str] | None:
    """Return whom to wake and who makes room for it: the most and the least worth. Return None if that is not clearly worth it."""
    first = max(asleep, key=lambda one: (_rate(worth, one), one), default=None)
    last = min(movable, key=lambda one: (_rate(worth, one), one), default=None)
    if first is None or last is None or _rate(worth, first) <= CLEARLY * _rate(worth, last):
        return None
    return first, last


class _Race:
    def __init__(
        self, contenders: Sequence[Contender], margin: float, alpha: float, members: int
    ) -> None:
        self._contenders = contenders
        self._margin = margin
        self._needed = -math.log(shared_alpha(members, alpha))
        self._ratio = {one.submission_id: _ratio(one.votes) for one in contenders}
        heard = [one for one in contenders if one.has_enough_votes]
        self._leader = max(
            heard, key=lambda one: (self._ratio[one.submission_id], one.submission_id), default=None
        )
        self._open = {one: lacking for one in heard if (lacking := self._missing_evidence(one)) > 0}

    def worths(self) -> dict[str, Worth]:
        return {one.submission_id: self._worth(one) for one in self._contenders}

    def _worth(self, one: Contender) -> Worth:
        if not one.has_enough_votes or (one.is_due and not one.is_awake):
            missing = HEARD if one.has_enough_votes else HEARD - one.votes.total
            return Worth(self._needed / cost(one, missing), missing)
        if one is not self._leader and one not in self._open:
            return NOTHING
        gain = self._gain_of_leader if one is self._leader else partial(self._gain_of, one, 0)
        return max(
            (Worth(gain(stay) / cost(one, stay), stay) for stay in STAYS),
            key=lambda worth: worth.rate,
        )

    def _missing_evidence(self, other: Contender) -> float:
        assert self._leader is not None, "somebody has been heard"
        if other is self._leader:
            return 0.0
        if (about := self._known(other, 0, 0)) < self._needed:  # the test never says more
            return self._needed + TEST_TAKES - about
        return self._needed - evidence(self._leader.votes, other.votes, self._margin)

    def _gain_of_leader(self, stay: int) -> float:
        return math.fsum(self._gain_of(other, stay, 0) for other in self._open)

    def _gain_of(self, other: Contender, ours: int, theirs: int) -> float:
        """Return what further ratings of both are expected to take away of what is not known of their pair."""
        lacking = self._open[other]
        more = self._known(other, ours, theirs) - self._known(other, 0, 0)
        return (lacking**2 - max(0.0, lacking - more) ** 2) / self._needed

    def _known(self, other: Contender, ours: int, theirs: int) -> float:
        assert self._leader is not None, "a pair has a leader"
        own, others = self._ratio[self._leader.submission_id], self._ratio[other.submission_id]
        doubt = own * (1 - own) / (self._leader.votes.total + ours)
        doubt += others * (1 - others) / (other.votes.total + theirs)
        return (own - others + self._margin) ** 2 / 2 / doubt


def _rate(worth: Mapping[str, Worth], submission_id: str) -> float:
    return worth.get(submission_id, NOTHING).rate


def _ratio(votes: VoteCount) -> float:
    """Return the ratio, drawn a little to a usual one, so that it is neither 0 nor 1."""
    return (votes.up + PRIOR_UP) / (votes.total + PRIOR_UP + PRIOR_DOWN)


def cost(one: Contender, ratings: int) -> float:
    """Return the seconds of GPUs that a stay of this number of ratings takes."""
    wake_s = 0.0 if one.is_awake else one.wake_s
    return one.gpus * (wake_s + ratings * one.rating_s)
