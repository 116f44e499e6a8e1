"""Says how few votes decide a pair of neighbours: removing ``k`` of them turns what the board says of the two.

Two neighbours stand *apart* if the interval of the upper one lies wholly above the other's; that turns when the intervals meet. If
they do not, what turns is their order: by thumbs that of the intervals' lower ends, by which the board lists them; by strengths
that of the scores.

By thumbs up only votes on the two matter, and of these only thumbs up for the upper one (a of them) and thumbs down for the
lower one (b): every other vote that goes makes the upper one safer. The search over b finds the least a + b exactly.

By strengths a vote counts against every other vote of its user, so there are as many sets of k votes as one likes. The
influence of a vote is how its removal would change the difference of the two scores: one Newton step from the present
strengths, H⁻¹(s' - s), with s the user's score vector and s' without the vote. The votes that help the upper one most are
removed first, and what is said is how many of these turn the pair when everything is fitted again. That number of votes does
turn it; a smaller set may exist. (T. Broderick, R. Giordano, R. Meager, "An Automatic Finite-Sample Robustness Metric",
2020; J. Y. Huang, Y. Shen, D. Wei, T. Broderick, "Dropping Just a Handful of Preferences Can Change Top Large Language
Model Rankings", 2025.)
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from guanaco.competitions import RankingRule
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelVotes
from guanaco_server.leaderboard.ranking.rules import ELO, Fit, Standing, VotesByUser, standings
from guanaco_server.leaderboard.ranking.strengths import bradley_terry, comparisons
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import CodedVotes
from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.votes import VoteCount

MOST_REMOVED = 2_000  # votes for a pair; beyond it the answer is "more"
TIE = 1e-7  # between scores that are the same but for rounding
MOST_FITS = 12  # a pair by strengths, a second each with a million votes
DUEL = -1  # in place of the user who gave a vote


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

    def standings(self) -> list[Standing]:
        return standings(self.rule, self.counts, self.ids, self.by_user, fit=self.fit)


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


def weakest_votes(ballots: RankedVotes, upper: Standing, lower: Standing) -> Pair:
    """Find how few votes turn a pair."""
    are_apart = are_separated(upper, lower)
    names = upper.submission_id, lower.submission_id
    if ballots.rule is RankingRule.THUMBS_UP:
        alpha = shared_alpha(sum(1 for count in ballots.counts.values() if count.total))
        above, below = (ballots.counts[name] for name in names)
        votes = fewest_thumbs(above, below, alpha, are_apart=are_apart)
        return Pair(*names, are_apart, votes, is_fewest=True)
    if not are_apart and upper.score.value < lower.score.value:
        names = names[::-1]
    order = _by_influence(ballots, *names)
    found = _votes_of_strengths(ballots, *names, are_apart, order)
    duels = sum(user == DUEL for user, _ in order[: found or 0])
    return Pair(*names, are_apart, found, is_fewest=False, duels=duels)


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


def _votes_of_strengths(
    ballots: RankedVotes,
    above: str,
    below: str,
    are_apart: bool,
    order: Sequence[tuple[int, int]],
) -> int | None:
    fits = itertools.count(1)

    def has_turned(removed: int) -> bool:
        if next(fits) > MOST_FITS:
            raise _TooManyFits
        left = without(ballots, order[:removed])
        found = {one.submission_id: one.score for one in left.standings()}
        if above not in found or below not in found:
            return True
        if are_apart:
            return found[above].low <= found[below].high
        return found[below].value - found[above].value > TIE

    try:
        return _first(has_turned, min(len(order), MOST_REMOVED))
    except _TooManyFits:
        return None


class _TooManyFits(Exception):
    pass


def _by_influence(ballots: RankedVotes, above: str, below: str) -> list[tuple[int, int]]:
    """Return the votes that help ``above`` against ``below`` as (user's index or DUEL, place), the most helpful first."""
    helpful = [one for one in removal_effects(ballots, above, below) if one[0] < 0]
    return [(user, place) for _, user, place in heapq.nsmallest(MOST_REMOVED, helpful)]


def removal_effects(ballots: RankedVotes, above: str, below: str) -> list[tuple[float, int, int]]:
    """Return by how much each vote's removal changes the difference of the two scores, with its user's index and its place.

    A vote on a battle has DUEL in place of the user, and its row among the duels.
    """
    fitted = ballots.fit(ballots.by_user, len(ballots.ids))
    slopes, pull = _slopes(ballots, fitted, above, below), None
    of_duels: list[tuple[float, int, int]] = []
    if ballots.duels is not None:
        pull = comparisons.pull_of(ballots.by_user, ballots.duels, fitted, slopes)
        changed = comparisons.removal_effects(ballots.duels, fitted, pull)
        of_duels = [(change, DUEL, row) for row, change in enumerate(changed.tolist())]
    changes, users, places = bradley_terry.removal_effects(
        ballots.by_user, fitted.values, slopes, pull
    )
    found = list(zip(changes.tolist(), users.tolist(), places.tolist(), strict=True))
    if ballots.rule is RankingRule.COMBINED:
        of_ratio = _ratio_effects(ballots, above, below)
        found = [
            (change + of_ratio.get(ballots.by_user[user][place], 0.0), user, place)
            for change, user, place in found
        ]
    return found + of_duels


def _slopes(
    ballots: RankedVotes, fitted: bradley_terry.Strengths, above: str, below: str
) -> list[float]:
    """Return how the difference of the two scores changes with each strength."""
    slopes = [0.0] * len(ballots.ids)
    pair = ((ballots.ids.index(above), 1.0), (ballots.ids.index(below), -1.0))
    if ballots.rule is RankingRule.BRADLEY_TERRY:
        for index, sign in pair:
            slopes[index] = sign * ELO
        return slopes
    compared = [index for index, weight in enumerate(fitted.compared) if weight > 0]
    for index, sign in pair:
        for other in compared:
            chance = 1 / (1 + math.exp(fitted.values[other] - fitted.values[index]))
            slope = sign * chance * (1 - chance) / max(1, len(compared) - 1) / 2
            slopes[index] += slope
            slopes[other] -= slope
    return slopes


def _ratio_effects(ballots: RankedVotes, above: str, below: str) -> dict[int, float]:
    """Return by how much the removal of a vote changes half the difference of the two ratios, by the vote's code."""
    found: dict[int, float] = {}
    for name, sign in ((above, 0.5), (below, -0.5)):
        count, code = ballots.counts[name], 2 * ballots.ids.index(name)
        if count.total > 1:
            ratio = count.up / count.total
            found[code] = sign * (count.up / (count.total - 1) - ratio)
            found[code + 1] = sign * ((count.up - 1) / (count.total - 1) - ratio)
    return found


def without(ballots: RankedVotes, removed: Sequence[tuple[int, int]]) -> RankedVotes:
    """Return the votes without some of them, given as (user's index, place), or (DUEL, row)."""
    places: defaultdict[int, set[int]] = defaultdict(set)
    for user, place in removed:
        places[user].add(place)
    duels, gone_duels = ballots.duels, places.pop(DUEL, set())
    if duels is not None and gone_duels:
        duels = comparisons.without(duels, gone_duels)
    counts, by_user = dict(ballots.counts), list(ballots.by_user)
    for user, gone in places.items():
        by_user[user] = tuple(c for at, c in enumerate(by_user[user]) if at not in gone)
        for at in gone:
            name, is_up = ballots.ids[ballots.by_user[user][at] >> 1], ballots.by_user[user][at] & 1
            counts[name] = VoteCount(counts[name].up - is_up, counts[name].down - 1 + is_up)
    return RankedVotes(ballots.rule, counts, ballots.ids, by_user, duels)


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least number up to ``most`` for which it holds, if it holds for every greater one too."""
    low, high = 0, 1
    if holds(0):
        return 0
    while high < most and not holds(high):
        low, high = high, 2 * high
    if high >= most:
        high = most
        if not holds(high):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
