"""Computes scores from votes by each ranking rule, and ranks from the scores' intervals.

    thumbs_up      the ratio of thumbs up
    bradley_terry  1,000 + 400 / ln 10 · θ, so that 400 more is ten times the odds (as in Elo)
    combined       the mean of the ratio and of the chance to beat another submission; half the sum of the two
                   standard errors bounds the error of that mean, however the two depend on each other

Intervals hold at every look and for all submissions together (statistics/confidence_sequences.py), with an error of 5 %
shared by all. Seasons of schema 1 have intervals for one look at one submission: Wilson's, and 1.96 standard errors.

A submission's rank is 1 plus the number of submissions whose interval lies wholly above its own. Submissions that
cannot be told apart share a rank. That is not transitive: A and B may share a rank, and B and C, although A is better
than C.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from guanaco.competitions import RankingRule
from guanaco.errors import NewerVersionNeeded
from guanaco_server.leaderboard.ranking.strengths import bradley_terry
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import CodedVotes
from guanaco_server.statistics.confidence_sequences import (
    ALPHA,
    asymptotic_multiple,
    proportion_sequence,
    shared_alpha,
)
from guanaco_server.statistics.intervals import Z_95, wilson_interval
from guanaco_server.statistics.votes import VoteCount

ELO = 400 / math.log(10)
ELO_AVERAGE = 1_000.0

Fit = Callable[[Sequence[CodedVotes], int], bradley_terry.Strengths]
Sequences = Callable[[Sequence[tuple[int, int]], float], list[tuple[float, float]]]


@dataclass(frozen=True)
class Score:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    submission_id: str
    rank: int
    score: Score


class VotesByUser:
    """A competition's votes by user, in little memory: a million take some 20 MB.

    ``ids`` are the submissions, at the index by which coded votes name them. New ones are added at the end.
    """

    def __init__(self, votes: Iterable[tuple[str, str, bool]]) -> None:
        """Take (user, submission, thumbs up) triples."""
        self.ids: list[str] = []
        self._indexes: dict[str, int] = {}
        found: defaultdict[str, list[int]] = defaultdict(list)
        for user, submission_id, thumbs_up in votes:
            found[user].append(self._code(submission_id, thumbs_up))
        self._by_user = {user: tuple(sorted(codes)) for user, codes in found.items()}
        self._replaced: dict[str, CodedVotes] = {}

    def replace(self, user: str, votes: Mapping[str, bool]) -> None:
        """Replace all votes of a user by these."""
        self._replaced.setdefault(user, self._by_user.get(user, ()))
        if votes:
            self._by_user[user] = tuple(sorted(self._code(*vote) for vote in votes.items()))
        else:
            self._by_user.pop(user, None)

    def take_changes(self) -> list[tuple[str, CodedVotes, CodedVotes]]:
        """Return each user whose votes were replaced since the last call, with the votes before and now."""
        replaced, self._replaced = self._replaced, {}
        return [
            (user, before, now)
            for user, before in replaced.items()
            if before != (now := self._by_user.get(user, ()))
        ]

    def index_of(self, submission_id: str) -> int:
        """Return the index of a submission, which is a new one if nobody has voted on it."""
        return self._code(submission_id, False) >> 1

    def comparing(self) -> list[str]:
        """Return the users whose votes ``comparable`` returns, in that order."""
        return [user for user, votes in self._by_user.items() if len(votes) > 1]

    def comparing_votes(self) -> list[tuple[str, CodedVotes]]:
        """Return the users whose votes ``comparable`` returns, each with these votes."""
        return [(user, votes) for user, votes in self._by_user.items() if len(votes) > 1]

    def everybody(self) -> list[str]:
        """Return the users whose votes ``everybodys`` returns, in that order."""
        return list(self._by_user)

    def everybodys(self) -> list[CodedVotes]:
        """Return the votes of each user."""
        return list(self._by_user.values())

    def comparable(self) -> list[CodedVotes]:
        """Return the votes of each user who voted on two submissions or more."""
        return [votes for votes in self._by_user.values() if len(votes) > 1]

    def _code(self, submission_id: str, thumbs_up: bool) -> int:
        index = self._indexes.setdefault(submission_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(submission_id)
        return 2 * index + thumbs_up


def one_by_one(counts: Sequence[tuple[int, int]], alpha: float) -> list[tuple[float, float]]:
    """Return the interval of each (successes, trials), whose digits do not depend on how many there are."""
    return [proportion_sequence(*one, alpha) for one in counts]


def standings(
    rule: RankingRule,
    votes: Mapping[str, VoteCount],
    ids: Sequence[str],
    by_user: Sequence[CodedVotes],
    *,
    is_for_one_look: bool = False,
    alpha: float = ALPHA,
    fit: Fit = bradley_terry.fit,
    sequences: Sequences = one_by_one,
) -> list[Standing]:
    """Rank the submissions that have votes, or for the other rules those that were compared.

    Args:
        rule: The competition's ranking rule.
        votes: The votes by submission.
        ids: The submissions that ``by_user`` refers to by index.
        by_user: The votes of each user who compared submissions.
        is_for_one_look: Use fixed-sample intervals, as seasons of schema 1 do.
        alpha: The error that the intervals of all submissions share, where they hold at every look.
        fit: Fits the strengths; one that continues from the last ranking saves time.
        sequences: Computes the intervals of ratios that hold at every look; one that computes many together saves time.

    Returns:
        The best first: by rank, then by the score's lower end.
    """
    rated = {submission: count for submission, count in votes.items() if count.total}
    if rule.is_unknown:
        raise NewerVersionNeeded(f"a competition that is ranked by {rule}")
    found = fit(by_user, len(ids)) if compares_users(rule) else None
    members = max(len(rated), len(_compared(found)) if found else 0)
    share = None if is_for_one_look else shared_alpha(members, alpha)
    if found is None:
        return ranked(_ratios(rated, share, sequences))
    if rule is RankingRule.BRADLEY_TERRY:
        return ranked(_strengths(found, ids, share))
    return ranked(_combined(rated, found, ids, share, sequences))


def ranked(scores: Mapping[str, Score]) -> list[Standing]:
    lows = sorted(score.low for score in scores.values())
    found = [
        Standing(submission, 1 + len(lows) - bisect_right(lows, score.high), score)
        for submission, score in scores.items()
    ]
    return sorted(found, key=lambda one: (one.rank, -one.score.low, one.submission_id))


def compares_users(rule: RankingRule) -> bool:
    """Tell whether a rule needs the votes of each user."""
    return rule is not RankingRule.THUMBS_UP


def margin_of(rule: RankingRule, within: float) -> float:
    """Return the margin in the rule's scores: for strengths, what such a lead in the chance to be preferred comes to."""
    if rule is RankingRule.BRADLEY_TERRY:
        chance = min(0.5 + within, 0.999)
        return ELO * math.log(chance / (1 - chance))
    return within


def _ratios(
    rated: Mapping[str, VoteCount], alpha: float | None, sequences: Sequences
) -> dict[str, Score]:
    """Return the ratios with their intervals, which are for one look where there is no ``alpha``."""
    counts = [(count.up, count.total) for count in rated.values()]
    found = [wilson_interval(*one) for one in counts] if alpha is None else sequences(counts, alpha)
    return {
        one: Score(count.up / count.total, low, high)
        for (one, count), (low, high) in zip(rated.items(), found, strict=True)
    }


def _multiple(users: float, alpha: float | None) -> float:
    """Return the standard errors to each side."""
    return Z_95 if alpha is None else asymptotic_multiple(users, alpha)


def _strengths(
    found: bradley_terry.Strengths, ids: Sequence[str], alpha: float | None
) -> dict[str, Score]:
    return {
        ids[index]: _around(
            ELO_AVERAGE + ELO * found.values[index],
            ELO * _multiple(found.compared[index], alpha) * found.errors[index],
        )
        for index in _compared(found)
    }


def _combined(
    rated: Mapping[str, VoteCount],
    found: bradley_terry.Strengths,
    ids: Sequence[str],
    alpha: float | None,
    sequences: Sequences,
) -> dict[str, Score]:
    """Half of the error is the ratio's, half the strength's, where intervals hold at every look."""
    indexes = [index for index in _compared(found) if ids[index] in rated]
    chances = bradley_terry.chances_against_field(found, indexes)
    half = alpha / 2 if alpha is not None else None
    ratios = _ratios({ids[index]: rated[ids[index]] for index in indexes}, half, sequences)
    scores = {}
    for index, (chance, error) in zip(indexes, chances, strict=True):
        ratio = ratios[ids[index]]
        value = (ratio.value + chance) / 2
        if half is None:
            ratio_error = (ratio.high - ratio.low) / 2 / Z_95
            scores[ids[index]] = _around(value, Z_95 * (ratio_error + error) / 2)
            continue
        spread = asymptotic_multiple(found.compared[index], half) * error
        scores[ids[index]] = Score(
            value, (ratio.low + chance - spread) / 2, (ratio.high + chance + spread) / 2
        )
    return scores


def _compared(found: bradley_terry.Strengths) -> list[int]:
    return [index for index, weight in enumerate(found.compared) if weight > 0]


def _around(value: float, spread: float) -> Score:
    return Score(value, value - spread, value + spread)
