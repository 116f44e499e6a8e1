"""The policy `decide`: conversations go where they soonest show that one submission is within a margin of the best.

Let the leader have the highest ratio, and let another one be d below it. With n votes on the leader and m on the other one, and p(1 - p)
for the variance v of a vote, what is known of the two grows like

    W = (d + margin)² / 2 (v / n + v' / m)

which is what statistics/decisions.py sums up as evidence. The next conversation belongs to the pair that is known least: the leader and the one
with the smallest W; and of the two to the leader with the probability (v / n) / (v / n + v' / m), for its vote then takes away so much of
what is not known. (C. Qin, W. You, "Dual-Directed Algorithm Design for Efficient Pure Exploration", 2023, and Y. Jourdan and
others, "Top Two Algorithms Revisited", 2022, show that this comes to the fewest votes in the limit; the margin is ours.) A snapshot has to
say how all conversations until the next one are shared, so a batch of them is played with the ratios as they are, and the shares are
what it comes to.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco_server.routing.policies.policies import LEAST_SHARE, Entry, Shares, weighted

HEARD = 20  # ratings before which a submission is not compared
BATCH = 64
MOST_COMPARED = 64  # those that are known least
PRIOR_UP, PRIOR_DOWN = 3.0, 2.0


def decisive(
    entries: Sequence[Entry], within: float, recency_floor: float, new_until: int
) -> Shares:
    """Return the shares; ``recency_floor`` is kept for entries with fewer than ``new_until`` ratings, and more while few are compared."""
    weights = [entry.weight for entry in entries]
    names = [entry.id for entry in entries]
    unheard = [float(entry.ratings < HEARD) for entry in entries]
    compared = len(entries) - int(sum(unheard))
    if compared < 2:
        return Shares(names, weighted(unheard if any(unheard) else [1.0] * len(entries), weights))
    shares = weighted(played(entries, within), weights)
    if any(unheard):
        shares = mixed(shares, weighted(unheard, weights), sum(unheard) / len(entries))
    new = [float(entry.ratings < new_until) for entry in entries]
    if any(new):
        shares = mixed(shares, weighted(new, weights), recency_floor)
    return Shares(names, [max(share, LEAST_SHARE) for share in shares])


def played(entries: Sequence[Entry], within: float) -> list[float]:
    """Return how often each of the compared entries is taken in a batch; two of them at least are compared."""
    heard = [place for place, entry in enumerate(entries) if entry.ratings >= HEARD]
    ratio = [_ratio(entry) for entry in entries]
    spread = [one * (1 - one) for one in ratio]
    votes = [float(entry.ratings) for entry in entries]
    leader = max(heard, key=lambda place: (ratio[place], -place))
    lead = [(ratio[leader] - one + within) ** 2 / 2 for one in ratio]

    def known(place: int) -> float:
        return lead[place] / (spread[leader] / votes[leader] + spread[place] / votes[place])

    others = sorted((place for place in heard if place != leader), key=known)[:MOST_COMPARED]
    taken, owed = [0.0] * len(entries), 0.0
    for _ in range(BATCH):
        other = min(others, key=known)
        ours, theirs = spread[leader] / votes[leader], spread[other] / votes[other]
        owed += ours / (ours + theirs)
        chosen = leader if owed >= 0.5 else other
        owed -= chosen == leader
        votes[chosen] += 1
        taken[chosen] += 1
    return taken


def mixed(shares: Sequence[float], others: Sequence[float], share: float) -> list[float]:
    """Give ``share`` of all to the others."""
    return [(1 - share) * one + share * other for one, other in zip(shares, others, strict=True)]


def _ratio(entry: Entry) -> float:
    """Return the ratio, drawn a little to a usual one, so that it is neither 0 nor 1."""
    return (entry.up + PRIOR_UP) / (entry.ratings + PRIOR_UP + PRIOR_DOWN)
