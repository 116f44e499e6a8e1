"""Decides how the gateway processes share an engine's places: a pure function of what each of them says.

Each says how many places it holds and how many it wants: those of its turns under way and waiting, by submission and app. A turn
wants as many as its reply has candidates; a gateway of the version before counts one for it. The places are the
submissions' first: each gets what it wants, or its max-min fair part of all of them, so what one does not use the others may. A submission's part is its apps' by the same rule. A gateway's aim is

    all get what they want   that, and a reserve for its next turns, as far as places are left
    they want more           of each app's part, what the app's turns here are of its turns everywhere, but no gateway that
                             wants any gets none. A turn that wants more than all of the aim takes all of it

and it takes no place before another gateway has given it up. So the places that are held never exceed those that are there.
Within a gateway, ``parts_here`` are the weights by which submissions and apps take turns (turn_queue.py).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Name = TypeVar("Name")
Demand = tuple[str, str]  # the key of a deployment, and an app that talks to it

LEAST_RESERVE = 2
RESERVE = 0.5  # of what is wanted
ANY_APP = ""  # of a gateway of the version before, which does not say whose turns it has


@dataclass(frozen=True)
class PlaceClaim:
    """``demands`` are the places wanted by submission and app. ``order`` decides between gateways that are equal otherwise: the smaller first."""

    held: int
    demands: Mapping[Demand, int] = field(default_factory=dict)
    order: bytes = b""

    @property
    def wanted(self) -> int:
        return sum(self.demands.values())


def places_for(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    """Return up to how many places this gateway may give to turns now. Fewer than ``mine.held``, those in use, where others have claims
    to some: those get free, and no others are taken."""
    free = max(0, capacity - sum(claim.held for claim in others))
    return min(part_of(mine, others, capacity), free)


def part_of(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    """Return how many places this gateway comes to, once the others have given up what they hold beyond their parts."""
    wanted = mine.wanted + sum(claim.wanted for claim in others)
    if wanted <= capacity:
        reserve = max(LEAST_RESERVE, math.ceil(mine.wanted * RESERVE))
        return mine.wanted + min(reserve, (capacity - wanted) // (len(others) + 1))
    asking = [claim for claim in (mine, *others) if claim.wanted]
    return _parts(asking, capacity)[0] if mine.wanted else 0


def parts_here(
    mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int
) -> Mapping[tuple[str, ...], float]:
    """Return how many of the places are each submission's, and each app's of it, in this gateway; none while all get what they want."""
    wanted = _demands((mine, *others))
    if wanted.total() <= capacity:
        return {}
    fair, found = _fair(wanted, capacity), defaultdict[tuple[str, ...], float](float)
    for demand, count in mine.demands.items():
        if count:
            part = fair[demand] * count / wanted[demand]
            found[demand] = part
            found[demand[:1]] += part
    return found


def fair_parts(wanted: Mapping[Name, float], total: float) -> dict[Name, float]:
    """Max-min fair parts of a total: nobody gets more than they want, and what is left is shared equally."""
    parts: dict[Name, float] = {}
    by_size = sorted(wanted.items(), key=lambda item: item[1])
    for number, (name, amount) in enumerate(by_size):
        parts[name] = min(amount, total / (len(by_size) - number))
        total -= parts[name]
    return parts


def _parts(claims: Sequence[PlaceClaim], capacity: int) -> list[int]:
    """One at least, and the rest by the fair parts, by the largest remainders."""
    parts = [0] * len(claims)
    order = sorted(range(len(claims)), key=lambda place: claims[place].order)
    for place in order[:capacity]:
        parts[place] = 1
    left = capacity - sum(parts)
    wanted = _demands(claims)
    fair = _fair(wanted, capacity)
    more = [
        max(0.0, sum(fair[of] * n / wanted[of] for of, n in claim.demands.items() if n) - part)
        for claim, part in zip(claims, parts, strict=True)
    ]
    beyond = sum(more)
    if left <= 0 or beyond <= 0:
        return parts
    exact = [left * each / beyond for each in more]
    parts = [part + int(each) for part, each in zip(parts, exact, strict=True)]
    by_remainder = sorted(order, key=lambda place: int(exact[place]) - exact[place])
    for place in by_remainder[: capacity - sum(parts)]:
        parts[place] += 1
    return parts


def _fair(wanted: Mapping[Demand, float], total: float) -> dict[Demand, float]:
    """Return the submissions' fair parts, each divided fairly between its apps."""
    by_key: defaultdict[str, dict[Demand, float]] = defaultdict(dict)
    for demand, count in wanted.items():
        by_key[demand[0]][demand] = count
    parts = fair_parts({key: sum(own.values()) for key, own in by_key.items()}, total)
    return {
        demand: part
        for key, own in by_key.items()
        for demand, part in fair_parts(own, parts[key]).items()
    }


def _demands(claims: Iterable[PlaceClaim]) -> Counter[Demand]:
    total = Counter[Demand]()
    for claim in claims:
        total.update(claim.demands)
    return total
