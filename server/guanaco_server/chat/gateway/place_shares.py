"""How the gateway processes share a model's places: the decision alone, a pure function of what each of them says.

Each says how many places it holds and how many it wants: its turns under way and waiting, by app. The places are the apps'
first: each app gets what it wants, or its max-min fair part of all of them. A gateway's aim is

    all get what they want   that, and a reserve for its next turns, as far as places are left
    they want more           of each app's part, what the app's turns here are of its turns everywhere, but no gateway that
                             wants any gets none

and it takes no place before another gateway has given it up. So the places that are held never exceed those that are there.
Within a gateway, ``app_parts`` are the weights by which the apps take turns (turn_queue.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Name = TypeVar("Name")

LEAST_RESERVE = 2
RESERVE = 0.5  # of what is wanted
ANY_APP = ""  # of a gateway of the version before, which does not say whose turns it has


@dataclass(frozen=True)
class PlaceClaim:
    """``wanted`` by app. ``order`` decides between gateways that are equal otherwise: the smaller first."""

    held: int
    apps: Mapping[str, int] = field(default_factory=dict)
    order: bytes = b""

    @property
    def wanted(self) -> int:
        return sum(self.apps.values())


def places_for(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    """Return the places that this gateway may hold now, ``mine.held`` being those that it has turns in."""
    free = max(0, capacity - sum(claim.held for claim in others))
    return max(mine.held, min(_aim(mine, others, capacity), free))


def app_parts(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> Mapping[str, float]:
    """Return how many of the places are each app's in this gateway; none while all get what they want."""
    wanted = _by_app((mine, *others))
    if wanted.total() <= capacity:
        return {}
    fair = fair_parts(wanted, capacity)
    return {app: fair[app] * count / wanted[app] for app, count in mine.apps.items() if count}


def fair_parts(wanted: Mapping[Name, float], total: float) -> dict[Name, float]:
    """Max-min fair parts of a total: nobody gets more than they want, and what is left is shared equally."""
    parts: dict[Name, float] = {}
    by_size = sorted(wanted.items(), key=lambda item: item[1])
    for number, (name, amount) in enumerate(by_size):
        parts[name] = min(amount, total / (len(by_size) - number))
        total -= parts[name]
    return parts


def _aim(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    wanted = mine.wanted + sum(claim.wanted for claim in others)
    if wanted <= capacity:
        reserve = max(LEAST_RESERVE, math.ceil(mine.wanted * RESERVE))
        return mine.wanted + min(reserve, (capacity - wanted) // (len(others) + 1))
    asking = [claim for claim in (mine, *others) if claim.wanted]
    return _parts(asking, capacity)[0] if mine.wanted else 0


def _parts(claims: Sequence[PlaceClaim], capacity: int) -> list[int]:
    """One at least, and the rest by the apps' fair parts, by the largest remainders."""
    parts = [0] * len(claims)
    order = sorted(range(len(claims)), key=lambda place: claims[place].order)
    for place in order[:capacity]:
        parts[place] = 1
    left = capacity - sum(parts)
    wanted = _by_app(claims)
    fair = fair_parts(wanted, capacity)
    more = [
        max(0.0, sum(fair[app] * n / wanted[app] for app, n in claim.apps.items() if n) - part)
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


def _by_app(claims: Sequence[PlaceClaim]) -> Counter[str]:
    total = Counter[str]()
    for claim in claims:
        total.update(claim.apps)
    return total
