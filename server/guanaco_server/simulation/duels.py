"""Simulates seasons of duels until the leader is known to be within a margin of the best, with the product's own choice of pairs and its test.

A user likes a reply with a chance of the request's distribution: where what they feel, which is normal, is above 0. What one user feels for two
replies has a correlation. They prefer the reply for which they feel more, and call it a tie where the two are close.

A user has conversations of five duels each, with submissions and rivals as the platform chooses them. Needs nothing that a light installation lacks.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from guanaco_server.routing.policies.duelling import Duelling, duelling
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.simulation.outcomes import SeasonOutcome
from guanaco_server.statistics.confidence_sequences import ALPHA
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER, DuelCount, compare_duels
from guanaco_server.statistics.duel_strengths import (
    NO_DUEL,
    PairCounts,
    duels_between,
    leader_of,
)

EVERY = 50  # duels between two looks, and between two plans
PER_CONVERSATION = 5
NORMAL = NormalDist()


@dataclass(frozen=True)
class Users:
    """The ways in which users differ. ``tastes`` is the deviation of what each user feels for each submission, in all of their duels alike.

    Attributes:
        correlation: Of what one user feels for two replies.
        tied: The share of duels between equal submissions that end in a tie.
        tastes: A deviation; 0 where a user feels for each reply anew.
        duels: How many each user votes on.
    """

    correlation: float = 0.5
    tied: float = 0.2
    tastes: float = 0.0
    duels: int = 1

    @property
    def spread(self) -> float:
        return math.sqrt(2 * (1 - self.correlation))

    @property
    def close(self) -> float:
        return self.spread * NORMAL.inv_cdf(0.5 + self.tied / 2)

    def preferred(self, gap: float) -> float:
        """Return the chance to be preferred by users for whom one is on average liked so much more, a tie being half of it."""
        return _preferred(gap, self.spread, self.close)


def _preferred(gap: float, spread: float, close: float) -> float:
    won = 1 - NORMAL.cdf((close - gap) / spread)
    lost = NORMAL.cdf((-close - gap) / spread)
    return (1 + won - lost) / 2


@dataclass(frozen=True)
class DuelPlan:
    """A season: how much the submissions are liked is drawn by ``likes``, as normal deviates."""

    submissions: int
    within: float
    floor: float
    new_until: int
    most_duels: int
    users: Users
    likes: Callable[[random.Random], list[float]]
    alpha: float = ALPHA


class DuelCounter(Protocol):
    """Keeps the duels of a season, and counts those that the verdict tests."""

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        """Note a duel that is worth 1 if the first was preferred, 0 if the second was."""
        ...

    def by_pair(self) -> PairCounts:
        """Count the duels of each pair, of each user's the first ones."""
        ...


class PlainDuelCounter:
    """Counts duels as they come, by the rule of leaderboard/ranking/duels/duel_table.py, which needs numpy."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], DuelCount] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        self._user = -1

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        """Users come one after the other."""
        if user != self._user:
            self._user = user
            self._held.clear()
        pair = (first, second) if first < second else (second, first)
        self._held[pair] += 1
        if self._held[pair] <= COUNTED_PER_USER:
            seen = worth if pair[0] == first else 1 - worth
            self._counts[pair] = self._counts.get(pair, NO_DUEL).plus(seen)

    def by_pair(self) -> PairCounts:
        return self._counts


@dataclass(frozen=True)
class DuelSeasonOutcome(SeasonOutcome):
    """A season's end; ``is_contradicted`` if those who compared the leader with the best one preferred it less than was said."""

    is_contradicted: bool = False


def duel_season(
    plan: DuelPlan, seed: int, book: Callable[[], DuelCounter] = PlainDuelCounter
) -> DuelSeasonOutcome:
    """Follow one season until the verdict, or until its duels are used up. The same seed gives the same season."""
    return _DuelSeason(plan, seed, book()).follow()


class _DuelSeason:
    def __init__(self, plan: DuelPlan, seed: int, book: DuelCounter) -> None:
        self._plan = plan
        self._chance = random.Random(seed)  # noqa: S311 - it simulates
        width = len(str(plan.submissions))
        self._names = [f"submission-{place:0{width}}" for place in range(plan.submissions)]
        self._likes = dict(zip(self._names, plan.likes(self._chance), strict=True))
        self._entries = [Entry(name, 0.0, 0, 0, 1.0) for name in self._names]
        self._book = book
        self._draws: Iterator[float] = iter(self._chance.random, None)
        self._means: dict[frozenset[str], tuple[float, int]] = {}
        self._user = 0
        self._begin_user()

    def follow(self) -> DuelSeasonOutcome:
        plan = self._plan
        for held in range(0, plan.most_duels, EVERY):
            counts = self._book.by_pair()
            leader = leader_of(self._names, counts)
            if leader is not None and self._is_shown(counts, leader):
                return self._settled(held, leader)
            duels = duelling(self._names, counts, plan.within, plan.floor, plan.new_until)
            self._hold(duels, min(EVERY, plan.most_duels - held))
        return DuelSeasonOutcome(None)

    def _settled(self, held: int, leader: str) -> DuelSeasonOutcome:
        within = self._plan.within
        best = max(self._names, key=self._likes.__getitem__)
        gap = self._likes[leader] - self._likes[best]
        mean = 0.5
        if best != leader:
            total, count = self._means.get(frozenset((leader, best)), (0.5, 1))
            mean = total / count if leader < best else 1 - total / count
        is_wrong = self._plan.users.preferred(gap) < 0.5 - within
        return DuelSeasonOutcome(held, is_wrong, mean < 0.5 - within)

    def _begin_user(self) -> None:
        self._user += 1
        self._left = self._plan.users.duels
        self._had: list[str] = []
        self._met: Counter[tuple[str, str]] = Counter()
        self._tastes: dict[str, float] = {}
        self._own = ""

    def _hold(self, plan: Duelling, duels: int) -> None:
        conversations = plan.conversations(self._entries)
        for _ in range(duels):
            if not self._left:
                self._begin_user()
            if (self._plan.users.duels - self._left) % PER_CONVERSATION == 0:
                own = conversations.choose(self._draws, set(self._had)) or self._had[0]
                self._had = [*(name for name in self._had if name != own), own]
                self._own = own
            own = self._own
            spent = {
                one if other == own else other
                for (one, other), met in self._met.items()
                if met >= COUNTED_PER_USER and own in (one, other)
            }
            rival = plan.rivals(own, spent).choose(self._draws, {own})
            assert rival is not None, "there are two at least"
            self._left -= 1
            self._vote(*_pair(own, rival))

    def _vote(self, first: str, second: str) -> None:
        users = self._plan.users
        gap, spread = self._likes[first] - self._likes[second], users.spread
        if users.tastes:
            gap += self._preference(first) - self._preference(second)
            spread = math.sqrt(spread**2 - 2 * users.tastes**2)  # of which the tastes are a part
        felt = self._chance.gauss(gap, spread)
        worth = 0.5 if abs(felt) < users.close else float(felt > 0)
        self._met[first, second] += 1
        if self._met[first, second] <= COUNTED_PER_USER:
            total, count = self._means.get(frozenset((first, second)), (0.0, 0))
            chance = _preferred(gap, spread, users.close)
            self._means[frozenset((first, second))] = (total + chance, count + 1)
        self._book.add(self._user, first, second, worth)

    def _preference(self, name: str) -> float:
        if name not in self._tastes:
            self._tastes[name] = self._chance.gauss(0, self._plan.users.tastes)
        return self._tastes[name]

    def _is_shown(self, counts: PairCounts, leader: str) -> bool:
        return all(
            compare_duels(
                duels_between(counts, leader, name),
                margin=self._plan.within,
                members=len(self._names),
                alpha=self._plan.alpha,
                foretells=False,
            ).is_within
            for name in self._names
            if name != leader
        )


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
