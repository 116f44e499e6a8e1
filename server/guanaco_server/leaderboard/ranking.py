"""From votes to scores, by each ranking rule, and from scores' intervals to ranks.

    thumbs_up      the ratio of thumbs up, with Wilson's interval
    bradley_terry  1,000 + 400 / ln 10 · θ, so that 400 more is ten times the odds (as Elo's); θ ± 1.96 errors
    combined       the mean of the ratio and of the chance to beat another submission; half the sum of the two
                   standard errors bounds that of the mean, however the two depend on each other

A rank is 1 and the number of submissions whose interval lies wholly above one's own: who cannot be told apart shares
it. That is not transitive: A and B may share a rank, and B and C, and A yet be better than C.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guanaco.competitions import RankingRule
from guanaco.errors import NewerVersionNeeded
from guanaco_server.intervals import Z_95, wilson_interval
from guanaco_server.leaderboard import bradley_terry
from guanaco_server.leaderboard.bradley_terry import Ballot

ELO = 400 / math.log(10)
ELO_AVERAGE = 1_000.0


@dataclass(frozen=True)
class Count:
    """One vote a user."""

    up: int
    down: int


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


def standings(
    rule: RankingRule, votes: Mapping[str, Count], ids: Sequence[str], ballots: Sequence[Ballot]
) -> list[Standing]:
    """Best first: by rank, then by the score's lower end. ``ballots`` index ``ids``; submissions that nobody voted on, or by
    the other rules compared, are left out."""
    rated = {one: count for one, count in votes.items() if count.up + count.down}
    match rule:
        case RankingRule.THUMBS_UP:
            scores = {one: _ratio(count) for one, count in rated.items()}
        case RankingRule.BRADLEY_TERRY:
            scores = _strengths(ids, ballots)
        case RankingRule.COMBINED:
            scores = _combined(rated, ids, ballots)
        case _:
            raise NewerVersionNeeded(f"a competition that is ranked by {rule}")
    return ranked(scores)


def ranked(scores: Mapping[str, Score]) -> list[Standing]:
    lows = sorted(score.low for score in scores.values())
    found = [
        Standing(one, 1 + len(lows) - bisect_right(lows, score.high), score)
        for one, score in scores.items()
    ]
    return sorted(found, key=lambda one: (one.rank, -one.score.low, one.submission_id))


def needs_ballots(rule: RankingRule) -> bool:
    return rule is not RankingRule.THUMBS_UP


def _ratio(count: Count) -> Score:
    trials = count.up + count.down
    low, high = wilson_interval(count.up, trials)
    return Score(count.up / trials, low, high)


def _strengths(ids: Sequence[str], ballots: Sequence[Ballot]) -> dict[str, Score]:
    found = bradley_terry.fit(ballots, len(ids))
    return {
        ids[index]: _around(
            ELO_AVERAGE + ELO * found.values[index], ELO * Z_95 * found.errors[index]
        )
        for index in _compared(found)
    }


def _combined(
    rated: Mapping[str, Count], ids: Sequence[str], ballots: Sequence[Ballot]
) -> dict[str, Score]:
    found = bradley_terry.fit(ballots, len(ids))
    indexes = [index for index in _compared(found) if ids[index] in rated]
    chances = bradley_terry.chances_against_field(found, indexes)
    scores = {}
    for index, (chance, error) in zip(indexes, chances, strict=True):
        ratio = _ratio(rated[ids[index]])
        ratio_error = (ratio.high - ratio.low) / 2 / Z_95
        scores[ids[index]] = _around((ratio.value + chance) / 2, Z_95 * (ratio_error + error) / 2)
    return scores


def _compared(found: bradley_terry.Strengths) -> list[int]:
    return [index for index, weight in enumerate(found.compared) if weight > 0]


def _around(value: float, spread: float) -> Score:
    return Score(value, value - spread, value + spread)
