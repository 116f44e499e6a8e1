"""How the gateway processes share a model's places: the decision alone, a pure function of what each of them says.

Each says how many places it holds and how many it wants: its turns under way and waiting. A gateway's aim is

    all get what they want   that, and a reserve for its next turns, as far as places are left
    they want more           its part in proportion to what it wants, but no gateway that wants any gets none

and it takes no place before another gateway has given it up. So the places that are held never exceed those that are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_RESERVE = 2
RESERVE = 0.5  # of what is wanted


@dataclass(frozen=True)
class PlaceClaim:
    """``order`` decides between gateways that are equal otherwise: the smaller first."""

    held: int
    wanted: int
    order: bytes = b""


def places_for(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    """Return the places that this gateway may hold now, ``mine.held`` being those that it has turns in."""
    free = max(0, capacity - sum(claim.held for claim in others))
    return max(mine.held, min(_aim(mine, others, capacity), free))


def _aim(mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> int:
    wanted = mine.wanted + sum(claim.wanted for claim in others)
    if wanted <= capacity:
        reserve = max(LEAST_RESERVE, math.ceil(mine.wanted * RESERVE))
        return mine.wanted + min(reserve, (capacity - wanted) // (len(others) + 1))
    asking = [claim for claim in (mine, *others) if claim.wanted]
    return _parts(asking, capacity)[0] if mine.wanted else 0


def _parts(claims: Sequence[PlaceClaim], capacity: int) -> list[int]:
    """In proportion to what each claim wants, one at least, by the largest remainders."""
    parts = [0] * len(claims)
    order = sorted(range(len(claims)), key=lambda place: claims[place].order)
    for place in order[:capacity]:
        parts[place] = 1
    left = capacity - sum(parts)
    beyond = sum(claim.wanted - part for claim, part in zip(claims, parts, strict=True))
    if left <= 0 or beyond <= 0:
        return parts
    exact = [
        left * (claim.wanted - part) / beyond for claim, part in zip(claims, parts, strict=True)
    ]
    parts = [part + int(more) for part, more in zip(parts, exact, strict=True)]
    by_remainder = sorted(order, key=lambda place: int(exact[place]) - exact[place])
    for place in by_remainder[: capacity - sum(parts)]:
        parts[place] += 1
    return parts
