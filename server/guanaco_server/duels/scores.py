"""Counts votes on duels as one submission sees them, with an interval that holds at every look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from guanaco.duels import DuelOutcome, DuelResult, DuelScore, PairScore, Side
from guanaco_server.statistics.confidence_sequences import (
    ALPHA,
    proportion_sequence,
    shared_alpha,
)

CountedVote = tuple[str, str, DuelOutcome, int]
"""The submissions of sides a and b, the outcome, and how many such votes there are."""


def result_for(side: Side, outcome: DuelOutcome) -> DuelResult:
    """Return a vote as the submission on that side sees it; an outcome of a newer version is unknown here too."""
    if outcome in (DuelOutcome.A, DuelOutcome.B):
        return DuelResult.WON if outcome.value == side else DuelResult.LOST
    return DuelResult.read(outcome)


def score_of(submission_id: str, votes: Iterable[CountedVote]) -> DuelScore:
    """Count a submission's results against all others."""
    found: Counter[str] = Counter()
    for a_submission, _, outcome, count in votes:
        side: Side = "a" if a_submission == submission_id else "b"
        found[result_for(side, outcome)] += count  # one of a newer version is in no sum
    return _score(found, ALPHA)


def scores_of_pairs(votes: Iterable[CountedVote]) -> list[PairScore]:
    """Count each pair's results, the first by name against the second; the error is shared by all pairs."""
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for a_submission, b_submission, outcome, count in votes:
        if outcome.is_unknown:
            continue
        first, second = sorted((a_submission, b_submission))
        side: Side = "a" if a_submission == first else "b"
        found[first, second][result_for(side, outcome)] += count
    alpha = shared_alpha(max(1, len(found)))
    return [
        PairScore(first=first, second=second, score=_score(results, alpha))
        for (first, second), results in sorted(found.items())
    ]


def _score(results: Mapping[str, int], alpha: float) -> DuelScore:
    won, lost = results.get("won", 0), results.get("lost", 0)
    ends = proportion_sequence(won, won + lost, alpha) if won + lost else (None, None)
    return DuelScore(
        won=won,
        lost=lost,
        tie=results.get("tie", 0),
        both_bad=results.get("both_bad", 0),
        low=ends[0],
        high=ends[1],
    )
