"""Fits strengths to the duels of pairs: enough to say who leads, and which pairs are close.

The difference of two submissions is the mean of their duels, wins less losses, by least squares; each one is drawn a little to the others'
middle. The ranking's strengths (leaderboard/ranking/strengths/comparisons.py) are of a likelihood, with errors; these take microseconds a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul

from guanaco_server.statistics.duel_decisions import DuelCount

SWEEPS = 20
HEARD = 10  # duels before which a submission does not lead, unless nobody has as many
DRAWN = 4.0  # duels with an average submission that come to a tie
NO_DUEL = DuelCount()

PairCounts = Mapping[tuple[str, str], DuelCount]
"""The duels of pairs, the first by name before the second, as the first one sees them."""

Results = Mapping[str, Mapping[str, DuelCount]]
"""The duels of each submission with each other that it met."""


def duels_between(counts: PairCounts, first: str, second: str) -> DuelCount:
    """Return the duels of two as the first one sees them."""
    if first < second:
        return counts.get((first, second), NO_DUEL)
    return counts.get((second, first), NO_DUEL).seen_by_other


def results_of(names: Sequence[str], counts: PairCounts) -> Results:
    """Return the results of these among themselves."""
    found: dict[str, dict[str, DuelCount]] = {name: {} for name in names}
    for (first, second), duels in counts.items():
        if first in found and second in found and duels.total:
            found[first][second] = duels
            found[second][first] = duels.seen_by_other
    return found


def members_of(counts: PairCounts) -> int:
    """Return among how many submissions the verdict shares its error: those that have duelled."""
    return len({name for pair, duels in counts.items() if duels.total for name in pair})


def leader_of(names: Sequence[str], counts: PairCounts) -> str | None:
    """Return who leads by duels; None while nobody has any. Two lucky duels make nobody the leader of those who have had more."""
    results = results_of(names, counts)
    strengths = strengths_of(results)
    held = {name: sum(duels.total for duels in met.values()) for name, met in results.items()}
    duelled = [name for name in names if held[name]]
    heard = [name for name in duelled if held[name] >= HEARD] or duelled
    return max(heard, key=lambda name: (strengths[name], name), default=None)


def strengths_of(results: Results) -> dict[str, float]:
    """Return the strengths, in wins less losses in a duel."""
    places = {name: place for place, name in enumerate(results)}
    values = [0.0] * len(places)
    lines = []
    for name, others in results.items():
        totals = [duels.total for duels in others.values()]
        gained = sum(duels.won - duels.lost for duels in others.values())
        met = [places[other] for other in others]
        lines.append((places[name], DRAWN + sum(totals), gained, totals, met))
    for _ in range(SWEEPS):
        for place, weight, gained, totals, met in lines:
            values[place] = (gained + sum(map(mul, totals, map(values.__getitem__, met)))) / weight
    return dict(zip(places, values, strict=True))
