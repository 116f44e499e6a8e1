"""Chooses pairs for duels, so that they soonest show that one submission is within a margin of every other one.

The strongest one by all duels leads (statistics/duel_strengths.py), and only its own duels with each other one are evidence (duel_decisions.py). With n duels of the
leader and one that is d behind, and e twice the margin, that evidence grows like n (d + e)²; so the next duel belongs to the
pair of the smallest, among those that are not shown yet. Close ones get most duels, and while few are held these also find out who leads.

Whoever has few duels is heard first. Half of the conversations of a pair begin with the leader, half with the other one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from guanaco_server.routing.policies.policies import LEAST_SHARE, Entry, Shares, weighted
from guanaco_server.statistics.duel_decisions import (
    DuelCount,
    evidence_of_duels,
    needed_evidence,
)
from guanaco_server.statistics.duel_strengths import (
    HEARD,
    NO_DUEL,
    PairCounts,
    members_of,
    results_of,
    strengths_of,
)

BATCH = 64


class Duelling(BaseModel):
    """The next duels: between ``leader`` and one of the others by their shares, or between any while nobody leads."""

    model_config = ConfigDict(frozen=True)

    leader: str | None
    shares: dict[str, float]

    @property
    def names(self) -> list[str]:
        return [*self.shares, *([] if self.leader is None else [self.leader])]

    def conversations(self, entries: Sequence[Entry]) -> Shares:
        """Return how conversations are shared, so that either of the two begins; what is newer than the plan is new to it."""
        given = self.shares
        if self.leader is not None:
            given = {self.leader: 0.5} | {name: share / 2 for name, share in given.items()}
        of_new = 1 / len(entries)
        shares = weighted(
            [max(given.get(entry.id, of_new), LEAST_SHARE) for entry in entries],
            [entry.weight for entry in entries],
        )
        return Shares([entry.id for entry in entries], shares)

    def rivals(self, own: str, spent: Collection[str] = ()) -> Shares:
        """Return how the rivals of a submission are shared: the leader is everybody else's.

        A user's duels with those in ``spent`` no longer count, so others are preferred.
        """
        if own != self.leader and self.leader is not None and self.leader not in spent:
            return Shares([self.leader], [1.0])
        others = [name for name in self.shares if name != own]
        names = [name for name in others if name not in spent] or others
        return Shares(names, [max(self.shares[name], LEAST_SHARE) for name in names])


def duelling(
    names: Sequence[str], counts: PairCounts, within: float, floor: float, new_until: int
) -> Duelling:
    """Plan the next duels; ``floor`` of them go to those with fewer than ``new_until`` duels, and more to those hardly heard."""
    results = results_of(names, counts)
    held = {name: sum(duels.total for duels in results[name].values()) for name in names}
    heard = [name for name in names if held[name] >= HEARD]
    unheard = [name for name in names if held[name] < HEARD]
    if len(heard) < 2:
        return Duelling(leader=None, shares=_uniform(unheard or names))
    strengths = strengths_of(results)
    leader = max(heard, key=lambda name: (strengths[name], name))
    shares = dict.fromkeys((name for name in names if name != leader), 0.0)
    needed = needed_evidence(members_of(counts))
    aimed = _opponent_shares(leader, heard, results[leader], strengths, within, needed)
    waiting = len(unheard) / len(names)
    new = [name for name in shares if HEARD <= held[name] < new_until]
    for part, of in (
        (waiting, _uniform(unheard)),
        ((1 - waiting) * floor * bool(new), _uniform(new)),
        ((1 - waiting) * (1 - floor * bool(new)), aimed),
    ):
        for name, share in of.items():
            shares[name] += part * share
    return Duelling(leader=leader, shares={name: round(one, 6) for name, one in shares.items()})


def _opponent_shares(
    leader: str,
    heard: Sequence[str],
    duels: Mapping[str, DuelCount],
    strengths: Mapping[str, float],
    within: float,
    needed: float,
) -> dict[str, float]:
    """Return how a batch of duels with the leader is shared; evenly once everything is shown."""
    others = [name for name in heard if name != leader]
    open_ones = [
        name for name in others if evidence_of_duels(duels.get(name, NO_DUEL), within) < needed
    ]
    if not open_ones:
        return _uniform(others)
    leads = {name: (strengths[leader] - strengths[name] + 2 * within) ** 2 for name in open_ones}
    held = {name: duels.get(name, NO_DUEL).total + 0.5 for name in open_ones}
    taken = dict.fromkeys(open_ones, 0)
    for name in _least_known(leads, held):
        taken[name] += 1
    return {name: count / BATCH for name, count in taken.items()}


def _least_known(leads: Mapping[str, float], held: dict[str, float]) -> Iterator[str]:
    for _ in range(BATCH):
        name = min(leads, key=lambda one: leads[one] * held[one])
        held[name] += 1
        yield name


def _uniform(names: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(names, 1 / len(names)) if names else {}
