"""Shows the duels that count as one submission sees them, with an interval that holds at every look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from guanaco.duels import DuelOutcome, DuelResult, DuelScore, PairScore, Side
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
