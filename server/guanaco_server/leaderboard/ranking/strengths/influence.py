"""Says how few votes decide a pair of neighbours: removing ``k`` of them turns what the board says of the two.

Two neighbours stand *apart* if the interval of the upper one lies wholly above the other's; that turns when the intervals meet. If
they do not, what turns is their order: by thumbs that of the intervals' lower ends, by which the board lists them; by strengths
that of the scores.

By thumbs up only votes on the two matter, and of these only thumbs up for the upper one (a of them) and thumbs down for the
lower one (b): every other vote that goes makes the upper one safer. The search over b finds the least a + b exactly.

By strengths a vote counts against every other vote of its user, so there are as many sets of k votes as one likes. The votes that are compared
with one on the two are sorted by their influence (ranking/strengths/removals.py), those that help the upper one most first, and what is said is how many
of these turn the pair. A smaller set may exist. On a small board everything is fitted again for each number that is tried; on a large one
a Newton step stands for the fit. (T. Broderick, R. Giordano, R. Meager, "An Automatic Finite-Sample Robustness Metric",
2020; J. Y. Huang, Y. Shen, D. Wei, T. Broderick, "Dropping Just a Handful of Preferences Can Change Top Large Language
Model Rankings", 2025.)
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from guanaco.competitions import RankingRule
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelVotes
from guanaco_server.leaderboard.ranking.rules import ELO, Fit, Standing, VotesByUser, standings
from guanaco_server.leaderboard.ranking.strengths import bradley_terry, comparisons
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import CodedVotes
from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels
from guanaco_server.leaderboard.ranking.strengths.removals import (
    DUELS,
    Change,
    Picks,
    VoteRemovals,
)
from guanaco_server.statistics.confidence_sequences import (
    asymptotic_multiple,
    proportion_sequence,
    shared_alpha,
)
from guanaco_server.statistics.votes import VoteCount

if TYPE_CHECKING:
    from guanaco_server.leaderboard.ranking.strengths.bradley_terry import Floats

MOST_REMOVED = 2_000  # votes for a pair; beyond it the answer is "more"
TIE = 1e-7  # between scores that are the same but for rounding
MOST_REFITTED = 100_000  # votes times pairs, up to which all is fitted again for each number tried: a second or two for a board
MOST_FITS = 30  # for a pair


@dataclass(frozen=True)
class Pair:
    """Two neighbours on the board.

    Attributes:
        above: The submission that is listed first.
        below: The next one.
        are_apart: Whether the first has the better rank.
        votes: How many votes turn that; None if it takes more than was looked for.
        is_fewest: Whether no smaller number would do.
        duels: How many of these are votes on battles.
    """

    above: str
    below: str
    are_apart: bool
    votes: int | None
    is_fewest: bool
    duels: int = 0


@dataclass(frozen=True)
class RankedVotes:
    """A competition's votes as its rule ranks them; ``by_user`` and ``duels`` name submissions by their index in ``ids``."""

    rule: RankingRule
    counts: Mapping[str, VoteCount]
    ids: Sequence[str]
    by_user: Sequence[CodedVotes]
    duels: CodedDuels | None = None

    @property
    def fit(self) -> Fit:
        duels = self.duels
        if duels is None or not len(duels.users):
            return bradley_terry.fit
        return lambda votes, size: comparisons.fit(votes, size, duels)

    @property
    def total(self) -> int:
        duels = 0 if self.duels is None else len(self.duels.users)
        return duels + sum(count.total for count in self.counts.values())

    @staticmethod
    def of(
        rule: RankingRule, votes: Collection[tuple[str, str, bool]], duels: DuelVotes = NO_DUELS
    ) -> RankedVotes:
        """Take (user, submission, thumbs up) triples, and the duels that count."""
        ups = Counter(name for _, name, thumbs_up in votes if thumbs_up)
        every = Counter(name for _, name, _ in votes)
        by_user = VotesByUser(votes)
        counts = {name: VoteCount(ups[name], total - ups[name]) for name, total in every.items()}
        places = {user: place for place, user in enumerate(by_user.everybody())}
        coded = duels.coded(by_user.index_of, places) if duels.total else None
        return RankedVotes(rule, counts, by_user.ids, by_user.everybodys(), coded)

    def standings(self, fitted: bradley_terry.Strengths | None = None) -> list[Standing]:
        """Rank by these votes; ``fitted`` are their strengths, where they are known already."""
        fit = self.fit if fitted is None else lambda *_: fitted
        return standings(self.rule, self.counts, self.ids, self.by_user, fit=fit)


def neighbours(found: Sequence[Standing]) -> list[tuple[Standing, Standing]]:
    """Pair each submission but the first with the one that its place depends on.

    That is the one listed before it; or, if the two have different ranks although neither lies above the other, the one
    that lies above the lower one by least.
    """
    pairs = []
    for upper, lower in itertools.pairwise(found):
        if upper.rank != lower.rank and not are_separated(upper, lower):
            apart = [one for one in found if are_separated(one, lower)]
            upper = min(apart, key=lambda one: (one.score.low, one.submission_id))
        pairs.append((upper, lower))
    return pairs


def are_separated(upper: Standing, lower: Standing) -> bool:
    return upper.score.low > lower.score.high


class BoardPairs:
    """The pairs of neighbours on one board. One fit, and one inverse, serve all pairs."""

    def __init__(self, ballots: RankedVotes) -> None:
        self._ballots = ballots
        self._by_strength: _PairsByStrength | None = None
        is_by_thumbs = ballots.rule is RankingRule.THUMBS_UP
        fitted = None if is_by_thumbs else ballots.fit(ballots.by_user, len(ballots.ids))
        self.standings = ballots.standings(fitted)
        self.neighbours = neighbours(self.standings)
        if fitted is not None and self.neighbours:
            self._by_strength = _PairsByStrength(ballots, fitted, len(self.neighbours))

    def weakest(self, upper: Standing, lower: Standing) -> Pair:
        """Find how few votes turn a pair."""
        are_apart = are_separated(upper, lower)
        if self._by_strength is not None:
            return self._by_strength.weakest(upper, lower, are_apart)
        counts = self._ballots.counts
        alpha = shared_alpha(sum(1 for count in counts.values() if count.total))
        names = upper.submission_id, lower.submission_id
        above, below = (counts[name] for name in names)
        votes = fewest_thumbs(above, below, alpha, are_apart=are_apart)
        return Pair(*names, are_apart, votes, is_fewest=True)

    def all_weakest(self) -> list[Pair]:
        return [self.weakest(*pair) for pair in self.neighbours]

    def influences(self, above: str, below: str) -> list[tuple[float, int, int]]:
        """Return by how much each vote's removal changes the difference of the two scores, with its user's index, or DUELS, and its place."""
        assert self._by_strength is not None, "by thumbs no vote has another one's influence"
        return self._by_strength.listed(above, below)


@lru_cache(maxsize=65_536)
def fewest_thumbs(
    above: VoteCount, below: VoteCount, alpha: float, *, are_apart: bool
) -> int | None:
    """Return the least number of votes without which the pair has turned; each keeps a vote at least."""
    best: int | None = None
    most = below.down if below.up else below.down - 1
    for taken in range(min(most, MOST_REMOVED) + 1):
        if best is not None and taken >= best:
            break
        left = VoteCount(below.up, below.down - taken)
        low, high = proportion_sequence(left.up, left.total, alpha)
        ups = _fewest_ups(above, high if are_apart else low, alpha, are_apart=are_apart)
        if ups is not None and (best is None or taken + ups < best):
            best = taken + ups
    return best if best is not None and best <= MOST_REMOVED else None


def _fewest_ups(above: VoteCount, bound: float, alpha: float, *, are_apart: bool) -> int | None:
    """Return how few thumbs up less bring the interval's lower end to the bound, or below it."""

    def has_come_down(ups: int) -> bool:
        low, _ = proportion_sequence(above.up - ups, above.total - ups, alpha)
        return low <= bound if are_apart else low < bound

    return _first(has_come_down, above.up if above.down else above.up - 1)


class _PairsByStrength:
    """Finds the weakest votes of pairs on a board by strengths, or by ratios and strengths combined."""

    def __init__(self, ballots: RankedVotes, fitted: bradley_terry.Strengths, pairs: int) -> None:
        import numpy as np

        self._ballots = ballots
        self._fitted = fitted
        self._is_combined = ballots.rule is RankingRule.COMBINED
        self._is_refitted = ballots.total * pairs <= MOST_REFITTED
        self._index = {name: index for index, name in enumerate(ballots.ids)}
        duels = ballots.duels or comparisons.no_duels()
        self._removals = VoteRemovals(
            ballots.by_user, duels, fitted, least=1 if self._is_combined else 2
        )
        compared = [index for index, weight in enumerate(fitted.compared) if weight > 0]
        rated = {name for name, count in ballots.counts.items() if count.total}
        share = shared_alpha(max(len(rated), len(compared)))
        self._alpha = share / 2 if self._is_combined else share
        self._values = np.asarray(fitted.values)
        self._errors = np.asarray(fitted.errors) * ELO
        if self._is_combined:
            compared = [index for index in compared if ballots.ids[index] in rated]
            chances = bradley_terry.chances_against_field(fitted, compared)
            self._errors[compared] = [error / 2 for _, error in chances]
        self._compared = np.asarray(compared, dtype=np.int64)

    def weakest(self, upper: Standing, lower: Standing, are_apart: bool) -> Pair:
        if not are_apart and upper.score.value < lower.score.value:
            upper, lower = lower, upper
        names = upper.submission_id, lower.submission_id
        order, effects, pull = self._helpful(*names)
        lead = upper.score.value - lower.score.value

        def has_turned(removed: int) -> bool:
            if not removed:
                return False
            picks = order.at(slice(removed))
            if self._is_refitted:
                return self._turns_when_refitted(picks, names, are_apart)
            change = self._removals.change(picks, pull, [self._index[name] for name in names])
            return self._turns(change, picks, names, lead, are_apart)

        gap = upper.score.low - lower.score.high if are_apart else lead
        guess = 1 + int((-effects).cumsum().searchsorted(gap))
        try:
            found = _first(_limited(has_turned), len(order), guess)
        except _TooManyFits:
            found = None
        duels = int((order.groups[: found or 0] == DUELS).sum())
        return Pair(*names, are_apart, found, is_fewest=False, duels=duels)

    def listed(self, above: str, below: str) -> list[tuple[float, int, int]]:
        effects, picks, _ = self._influences(above, below)
        return [
            (effect, *vote)
            for effect, vote in zip(effects.tolist(), self._removals.votes_of(picks), strict=True)
        ]

    def _helpful(self, above: str, below: str) -> tuple[Picks, Floats, Floats]:
        """Return the votes that help ``above`` against ``below``, the most helpful first, their influences, and the pull."""
        import numpy as np

        effects, picks, pull = self._influences(above, below)
        helpful = np.flatnonzero(effects < 0)
        order = helpful[np.lexsort((helpful, effects[helpful]))]
        order = order[~self._removals.are_spent(picks.at(order))][:MOST_REMOVED]
        return picks.at(order), effects[order], pull

    def _influences(self, above: str, below: str) -> tuple[Floats, Picks, Floats]:
        pull = self._pull(above, below)
        of_ratio = self._ratio_influences(above, below) if self._is_combined else None
        both = [self._index[above], self._index[below]]
        return *self._removals.influences(pull, both, of_ratio), pull

    def _pull(self, above: str, below: str) -> Floats:
        """Return how the difference of the two scores changes with each entry of the score vector."""
        import numpy as np

        inverse, one, other = self._removals.inverse, self._index[above], self._index[below]
        if not self._is_combined:
            difference: Floats = ELO * (inverse[one] - inverse[other])
            return difference
        slopes = np.zeros(len(inverse))
        for index, sign in ((one, 1.0), (other, -1.0)):
            chances = bradley_terry.logistic(self._values[index] - self._values[self._compared])
            each = sign * chances * (1 - chances) / max(1, len(self._compared) - 1) / 2
            slopes[self._compared] -= each
            slopes[index] += each.sum()
        found: Floats = inverse @ slopes
        return found

    def _ratio_influences(self, above: str, below: str) -> Floats:
        """Return by how much the removal of a vote changes half the difference of the two ratios, by the vote's code."""
        import numpy as np

        found = np.zeros(2 * len(self._ballots.ids))
        for name, sign in ((above, 0.5), (below, -0.5)):
            count, code = self._ballots.counts.get(name, VoteCount(0, 0)), 2 * self._index[name]
            if count.total > 1:
                ratio = count.up / count.total
                found[code] = sign * (count.up / (count.total - 1) - ratio)
                found[code + 1] = sign * ((count.up - 1) / (count.total - 1) - ratio)
        return found

    def _turns(
        self, change: Change, picks: Picks, names: tuple[str, str], lead: float, are_apart: bool
    ) -> bool:
        """Tell whether a pair has turned, by a Newton step."""
        indexes = [self._index[name] for name in names]
        weights = [
            self._fitted.compared[index] + less
            for index, less in zip(indexes, change.compared, strict=True)
        ]
        if min(weights) <= TIE:
            return True
        lead += change.figure
        if self._is_combined:
            before = [self._ballots.counts[name] for name in names]
            left = self._counts_without(picks, names)
            if not all(count.total for count in left):
                return True
            lead -= _half_lead(before)
            lead += self._half_lead_of_ends(left) if are_apart else _half_lead(left)
        if not are_apart:
            return lead < -TIE
        spreads = (
            asymptotic_multiple(weight, self._alpha) * float(self._errors[index]) * growth
            for weight, index, growth in zip(weights, indexes, change.growth, strict=True)
        )
        return lead <= sum(spreads)

    def _counts_without(self, picks: Picks, names: tuple[str, str]) -> list[VoteCount]:
        gone = Counter(self._removals.codes_of(picks))
        found = []
        for name in names:
            count, code = self._ballots.counts[name], 2 * self._index[name]
            found.append(VoteCount(count.up - gone[code + 1], count.down - gone[code]))
        return found

    def _half_lead_of_ends(self, counts: Sequence[VoteCount]) -> float:
        (low, _), (_, high) = (
            proportion_sequence(one.up, one.total, self._alpha) for one in counts
        )
        return (low - high) / 2

    def _turns_when_refitted(self, picks: Picks, names: tuple[str, str], are_apart: bool) -> bool:
        left = without(self._ballots, self._removals.votes_of(picks))
        found = {one.submission_id: one.score for one in left.standings()}
        if not found.keys() >= set(names):
            return True
        above, below = (found[name] for name in names)
        if are_apart:
            return above.low <= below.high
        return below.value - above.value > TIE


def _half_lead(counts: Sequence[VoteCount]) -> float:
    above, below = (one.up / one.total for one in counts)
    return (above - below) / 2


def _limited(holds: Callable[[int], bool]) -> Callable[[int], bool]:
    """Allow MOST_FITS calls."""
    fits = itertools.count(1)

    def counting(number: int) -> bool:
        if next(fits) > MOST_FITS:
            raise _TooManyFits
        return holds(number)

    return counting


class _TooManyFits(Exception):
    pass


def without(ballots: RankedVotes, removed: Sequence[tuple[int, int]]) -> RankedVotes:
    """Return the votes without some of them, given as (user's index, place), or (DUELS, row)."""
    places: defaultdict[int, set[int]] = defaultdict(set)
    for user, place in removed:
        places[user].add(place)
    duels, gone_duels = ballots.duels, places.pop(DUELS, set())
    if duels is not None and gone_duels:
        duels = comparisons.without(duels, gone_duels)
    counts, by_user = dict(ballots.counts), list(ballots.by_user)
    for user, gone in places.items():
        by_user[user] = tuple(c for at, c in enumerate(by_user[user]) if at not in gone)
        for at in gone:
            name, is_up = ballots.ids[ballots.by_user[user][at] >> 1], ballots.by_user[user][at] & 1
            counts[name] = VoteCount(counts[name].up - is_up, counts[name].down - 1 + is_up)
    return RankedVotes(ballots.rule, counts, ballots.ids, by_user, duels)


def _first(holds: Callable[[int], bool], most: int, guess: int = 1) -> int | None:
    """Return the least number from 0 to ``most`` for which it holds, if it holds for every greater one too; a near guess saves trials."""
    low, high, step = -1, min(guess, most), 1 + guess // 8
    if holds(high):
        while high and low < 0:
            tried = max(0, high - step)
            low, high, step = (low, tried, 2 * step) if holds(tried) else (tried, high, step)
    else:
        while low < 0 or not holds(high):
            if high >= most:
                return None
            low, high, step = high, min(most, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
