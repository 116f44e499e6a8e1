"""Simulates seasons whose best submission changes: the claims about those who rated, beside what is so at the end.

Twenty submissions with ratios from Beta(12, 8), policy `decide`, 12,000 ratings of as many users, a look every 300. Half of them come before the change:

    nothing changes
    the best falls at once      to 10 points below the second best: users' taste has turned
    the best falls slowly       by as much, evenly over the other half
    a newcomer is the best      it enters with a ratio 8 points above the best

A claim is wrong *of those who rated* if the mean chance of the leader's raters is more than the margin below that of another one's, and *of now* if the
leader's ratio is more than the margin below the best one's. Called by benchmarks/evidence.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Protocol

from benchmarks.decisions import SUBMISSIONS, WORKERS, is_likely, is_shown, leader_of
from guanaco_server.routing.policies.deciding import decisive
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.statistics.beta_prior import BetaPrior
from guanaco_server.statistics.confidence_sequences import (
    log_evidence_against,
    proportion_sequence,
    shared_alpha,
)
from guanaco_server.statistics.duel_decisions import needed_evidence
from guanaco_server.statistics.votes import VoteCount

RATINGS, EVERY = 12_000, 300
CHANGE_AT = RATINGS // 2
WITHIN = 0.05
FALLS_BELOW, STANDS_ABOVE = 0.10, 0.08
PRIOR = BetaPrior(12, 8, 1)  # the right one, before anything changes
NOTHING, AT_ONCE, SLOWLY, NEWCOMER = WORLDS = (
    "nothing changes",
    "the best falls at once",
    "the best falls slowly",
    "a newcomer is the best",
)


@dataclass(frozen=True)
class Claim:
    """A claim that the leader is within the margin of the best."""

    leader: int
    is_wrong_of_raters: bool
    is_wrong_of_now: bool


@dataclass(frozen=True)
class Season:
    """The outcome of a season.

    Attributes:
        has_held: Whether each interval held the mean chance of those who rated, at every look.
        missed_now: The share of submissions whose interval does not hold their ratio at the end.
        has_leaders_missed: Whether the interval of the best one of the first half does not.
        first: The first always-valid claim before the change.
        is_first_wrong_now: Whether that one's leader is beyond the margin at the end.
        last: The always-valid claim at the end.
        likely: The Bayesian claim at the end.
        leads_after: Ratings from the change until the best one of the end leads the board.
    """

    has_held: bool
    missed_now: float
    has_leaders_missed: bool
    first: Claim | None
    is_first_wrong_now: bool
    last: Claim | None
    likely: Claim | None
    leads_after: int | None


def kinds(seed: int, count: int) -> dict[str, dict[str, float]]:
    """Simulate seasons of each world; the same seed gives the same ones."""
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return {
            world: summary(
                list(pool.map(partial(season, world), range(seed, seed + count), chunksize=4))
            )
            for world in WORLDS
        }


def summary(found: Sequence[Season]) -> dict[str, float]:
    leading = [one.leads_after for one in found if one.leads_after is not None]
    return {
        "all intervals always held those who rated": fmean(one.has_held for one in found),
        "ratios of now outside of their interval": fmean(one.missed_now for one in found),
        "and that of the first half's best": fmean(one.has_leaders_missed for one in found),
        "settled before the change": fmean(one.first is not None for one in found),
        "wrong of now then": _share([one.first for one in found], lambda one: one.is_wrong_of_now),
        "wrong of now at the end": fmean(one.is_first_wrong_now for one in found),
        **_at_end("settled", [one.last for one in found]),
        **_at_end("by Bayes", [one.likely for one in found]),
        "the best of now has led since": fmean(one.leads_after is not None for one in found),
        "ratings until it led": median(leading) if leading else RATINGS - CHANGE_AT,
    }


def _at_end(name: str, claims: Sequence[Claim | None]) -> dict[str, float]:
    return {
        f"{name} at the end": fmean(one is not None for one in claims),
        f"{name}, wrong of those who rated": _share(claims, lambda one: one.is_wrong_of_raters),
        f"{name}, wrong of now": _share(claims, lambda one: one.is_wrong_of_now),
    }


def _share(claims: Sequence[Claim | None], is_wrong: Callable[[Claim], bool]) -> float:
    """Return the share of all seasons in which the claim was made wrongly."""
    return fmean(one is not None and is_wrong(one) for one in claims)


def season(world: str, seed: int) -> Season:
    chance = random.Random(seed)
    board = _Board([chance.betavariate(PRIOR.up, PRIOR.down) for _ in range(SUBMISSIONS)])
    was_best, old = board.best, list(board.ratios)
    second = sorted(range(SUBMISSIONS), key=old.__getitem__)[-2]
    floor = old[second] - FALLS_BELOW
    will_be_best = {NOTHING: was_best, NEWCOMER: SUBMISSIONS}.get(world, second)
    first, has_held, leads_after = None, True, None
    while board.ratings < RATINGS:
        if board.ratings == CHANGE_AT and world == NEWCOMER:
            board.enter(min(0.97, max(old) + STANDS_ABOVE))
        if board.ratings >= CHANGE_AT and world in (AT_ONCE, SLOWLY):
            past = 1.0 if world == AT_ONCE else (board.ratings - CHANGE_AT) / CHANGE_AT
            board.ratios[was_best] = old[was_best] + past * (floor - old[was_best])
        board.rate(chance)
        has_held = has_held and board.holds_raters()
        if board.ratings <= CHANGE_AT:
            first = first or board.claim(is_shown)
        elif leads_after is None and board.leader == will_be_best:
            leads_after = board.ratings - CHANGE_AT
    return Season(
        has_held=has_held,
        missed_now=fmean(board.misses_now(one) for one in range(len(board.ratios))),
        has_leaders_missed=board.misses_now(was_best),
        first=first,
        is_first_wrong_now=first is not None and board.is_beyond(first.leader),
        last=board.claim(is_shown),
        likely=board.claim(partial(is_likely, prior=PRIOR)),
        leads_after=leads_after,
    )


class _IsClaimed(Protocol):
    def __call__(self, votes: list[VoteCount], leader: int, *, within: float) -> bool: ...


class _Board:
    """The ratings of one season, and the chances of those who gave them."""

    def __init__(self, ratios: list[float]) -> None:
        self.ratios = ratios
        self._up, self._total = [0] * len(ratios), [0] * len(ratios)
        self._expected = [0.0] * len(ratios)

    @property
    def ratings(self) -> int:
        return sum(self._total)

    @property
    def best(self) -> int:
        return max(range(len(self.ratios)), key=self.ratios.__getitem__)

    @property
    def votes(self) -> list[VoteCount]:
        return [VoteCount(up, total - up) for up, total in zip(self._up, self._total, strict=True)]

    @property
    def leader(self) -> int:
        return leader_of(self.votes)

    def enter(self, ratio: float) -> None:
        self.ratios.append(ratio)
        self._up.append(0)
        self._total.append(0)
        self._expected.append(0.0)

    def rate(self, chance: random.Random) -> None:
        """Add the ratings until the next look."""
        places = range(len(self.ratios))
        entries = [
            Entry(str(place), 0.0, one.up, one.down, 1.0) for place, one in enumerate(self.votes)
        ]
        chances: Mapping[str, float] = decisive(entries, WITHIN, 0.1, 50).chances(frozenset())
        weights = [chances[str(place)] for place in places]
        for place in chance.choices(places, weights, k=EVERY):
            self._total[place] += 1
            self._expected[place] += self.ratios[place]
            self._up[place] += chance.random() < self.ratios[place]

    def holds_raters(self) -> bool:
        """Tell whether each interval holds the mean chance of those who rated."""
        needed = self._needed
        return all(
            not total or log_evidence_against(expected / total, up, total) < needed
            for up, total, expected in zip(self._up, self._total, self._expected, strict=True)
        )

    def misses_now(self, place: int) -> bool:
        """Tell whether an interval does not hold the ratio of now."""
        if not self._total[place]:
            return False
        alpha = shared_alpha(len(self.ratios))
        low, high = proportion_sequence(self._up[place], self._total[place], alpha)
        return not low <= self.ratios[place] <= high

    def is_beyond(self, place: int) -> bool:
        return self.ratios[place] < max(self.ratios) - WITHIN

    def claim(self, is_claimed: _IsClaimed) -> Claim | None:
        leader = self.leader
        if not is_claimed(self.votes, leader, within=WITHIN):
            return None
        means = [
            expected / total if total else 0.0
            for expected, total in zip(self._expected, self._total, strict=True)
        ]
        return Claim(leader, means[leader] < max(means) - WITHIN, self.is_beyond(leader))

    @property
    def _needed(self) -> float:
        return needed_evidence(len(self.ratios))
