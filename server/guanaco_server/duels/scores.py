"""Shows the duels that count as one submission sees them, with an interval that holds at every look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from guanaco.duels import (
    DuelOutcome,
    DuelResult,
    DuelScore,
    PairScore,
    RegenerationPair,
    RegenerationScore,
    Side,
)
from guanaco_server.statistics.confidence_sequences import (
    ALPHA,
    proportion_sequence,
    shared_alpha,
)
from guanaco_server.statistics.duel_decisions import DuelCount


class PairResults(NamedTuple):
    """The duels of two submissions that count, as the first of them sees them."""

    won: int = 0
    lost: int = 0
    tied: int = 0
    both_bad: int = 0

    @property
    def seen_by_other(self) -> PairResults:
        return self._replace(won=self.lost, lost=self.won)

    @property
    def tested(self) -> DuelCount:
        """Two bad replies are a tie."""
        return DuelCount(self.won, self.tied + self.both_bad, self.lost)


def result_for(side: Side, outcome: DuelOutcome) -> DuelResult:
    """Return a vote as the submission on that side sees it; an outcome of a newer version is unknown here too."""
    if outcome in (DuelOutcome.A, DuelOutcome.B):
        return DuelResult.WON if outcome.value == side else DuelResult.LOST
    return DuelResult.read(outcome)


def score_of(pairs: Iterable[PairResults]) -> DuelScore:
    """Sum a submission's results against all others."""
    columns = list(zip(*pairs, strict=True)) or [()] * len(PairResults._fields)
    return _score(PairResults(*map(sum, columns)), ALPHA)


def scores_of_pairs(pairs: Iterable[tuple[str, str, PairResults]]) -> list[PairScore]:
    """Show each pair's results, the first by name against the second; the error is shared by all pairs."""
    found = list(pairs)
    alpha = shared_alpha(max(1, len(found)))
    return [
        PairScore(first=first, second=second, score=_score(results, alpha))
        for first, second, results in found
    ]


class RegenerationCount(NamedTuple):
    """Compared regenerations in the conversations of one submission against one rival."""

    own_kept: int = 0
    own_total: int = 0
    other_kept: int = 0
    other_total: int = 0


def scores_of_regenerations(
    counts: Mapping[tuple[str, str], RegenerationCount],
) -> list[RegenerationPair]:
    """Show the compared regenerations of each pair, given by own submission and rival.

    A fair coin, which nobody's answer knows, chooses who writes the reply. So with W = 1 if the rival's reply was kept or the own one was
    not, E[W | past] = (1 + d) / 2, where d is how much more often this user would keep the rival's reply: whatever users feel,
    wins and losses of W give a confidence sequence of the mean of d, as a vote's do of its mean. Half of a pair's error is for
    each of its two kinds of conversations.
    """
    sides = sorted({tuple(sorted(pair)) for pair in counts})
    alpha = shared_alpha(max(1, len(sides))) / 2
    found = []
    for first, second in sides:
        in_firsts = _regenerations(counts.get((first, second), RegenerationCount()), alpha)
        in_seconds = _regenerations(counts.get((second, first), RegenerationCount()), alpha)
        lead = _half_difference(in_seconds, in_firsts)
        found.append(
            RegenerationPair(
                first=first,
                second=second,
                in_firsts=in_firsts,
                in_seconds=in_seconds,
                lead=lead[0],
                low=lead[1],
                high=lead[2],
            )
        )
    return found


def _regenerations(count: RegenerationCount, alpha: float) -> RegenerationScore:
    counted = RegenerationScore(**count._asdict())
    total = count.own_total + count.other_total
    if not total:
        return counted
    won = count.other_kept + count.own_total - count.own_kept
    low, high = proportion_sequence(won, total, alpha)
    ends = {"effect": 2 * won / total - 1, "low": 2 * low - 1, "high": 2 * high - 1}
    return counted.model_copy(update=ends)


def _half_difference(
    one: RegenerationScore, other: RegenerationScore
) -> tuple[float | None, float | None, float | None]:
    if one.effect is None or other.effect is None:
        return None, None, None
    assert one.low is not None, "an effect has an interval"
    assert one.high is not None, "an effect has an interval"
    assert other.low is not None, "an effect has an interval"
    assert other.high is not None, "an effect has an interval"
    return (
        (one.effect - other.effect) / 2,
        (one.low - other.high) / 2,
        (one.high - other.low) / 2,
    )


def _score(results: PairResults, alpha: float) -> DuelScore:
    won, lost = results.won, results.lost
    ends = proportion_sequence(won, won + lost, alpha) if won + lost else (None, None)
    return DuelScore(
        won=won,
        lost=lost,
        tie=results.tied,
        both_bad=results.both_bad,
        low=ends[0],
        high=ends[1],
    )
