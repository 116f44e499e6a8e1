"""Computes what the next duels of each submission are worth where duels settle who is best, for each second of a GPU.

The verdict tests the duels of the leader with each other one (statistics/duel_decisions.py). As in worth.py, what is not known of an open pair is
(b - J)² / b, with J its evidence and b what the verdict needs; k more duels of a pair whose leader is d ahead add about k (d + 2 margin)² / 2 to J.
A duel takes both: so a pair is worth what its duels take away, for the seconds of both and of waking the one that sleeps. Another
submission is worth what its pair is, and the leader as much as the pair that is worth most.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco_server.scaling.worth import NOTHING, STAYS, Contender, Worth, cost
from guanaco_server.statistics.confidence_sequences import ALPHA
from guanaco_server.statistics.duel_decisions import evidence_of_duels, needed_evidence
from guanaco_server.statistics.duel_strengths import (
    HEARD,
    PairCounts,
    duels_between,
    members_of,
    results_of,
    strengths_of,
)


def worths_by_duels(
    contenders: Sequence[Contender], duels: PairCounts, margin: float, alpha: float = ALPHA
) -> dict[str, Worth]:
    """Return what the next duels of each contender of one competition are worth."""
    if len(contenders) < 2:
        return {one.submission_id: NOTHING for one in contenders}
    needed = needed_evidence(max(2, members_of(duels)), alpha)
    results = results_of([one.name for one in contenders], duels)
    strengths = strengths_of(results)
    held = {name: sum(pair.total for pair in met.values()) for name, met in results.items()}
    found = {one.submission_id: NOTHING for one in contenders}
    heard = [one for one in contenders if held[one.name] >= HEARD]
    for one in contenders:
        if held[one.name] < HEARD or (one.is_due and not one.is_awake):
            missing = max(1, HEARD - held[one.name])
            found[one.submission_id] = Worth(needed / cost(one, missing), missing)
    if len(heard) < 2:
        return found
    leader = max(heard, key=lambda one: (strengths[one.name], one.name))

    def of_pair(other: Contender) -> Worth:
        pair = duels_between(duels, leader.name, other.name)
        lacking = needed - evidence_of_duels(pair, margin)
        if lacking <= 0:
            return NOTHING
        ahead = (strengths[leader.name] - strengths[other.name] + 2 * margin) ** 2 / 2
        return max(
            (
                Worth(
                    (lacking**2 - max(0.0, lacking - stay * ahead) ** 2)
                    / needed
                    / (cost(leader, stay) + cost(other, stay)),
                    stay,
                )
                for stay in STAYS
            ),
            key=lambda worth: worth.rate,
        )

    pairs = {one.submission_id: of_pair(one) for one in heard if one is not leader}
    pairs[leader.submission_id] = max(pairs.values(), key=lambda worth: worth.rate)
    for name, worth in pairs.items():
        if worth.rate > found[name].rate:
            found[name] = worth
    return found
