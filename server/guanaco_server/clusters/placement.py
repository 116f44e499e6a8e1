"""In which regions a deployment lives: a pure function of its name, the regions, and where it is already.

Weighted rendezvous hashing: of name and region a number between 0 and 1 is made, and the region with the largest
``-weight / ln(number)`` is first. A region that comes or goes so moves only what is its own, and of many deployments
each region gets its weight's share. (Wang and Ravishankar 1998; the weights are Schindelhauer and Schomaker's, 2005.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RegionShare:
    """``weight`` 0 takes nothing new, and what is there is moved away. ``capacity`` counts deployments, 0 is no limit.

    ``replicas`` of every deployment live here in any case; 0 leaves it to the placement.
    """

    weight: float = 1.0
    capacity: int = 0
    replicas: int = 0

    def has_room(self, deployments: int) -> bool:
        return self.capacity == 0 or deployments < self.capacity


def ranking(name: str, regions: Mapping[str, RegionShare]) -> list[str]:
    """Return the regions that take deployments, the best for this one first."""
    taking = [region for region, share in regions.items() if share.weight > 0]
    return sorted(taking, key=lambda region: -_score(name, region, regions[region].weight))


def place(
    name: str,
    replicas: int,
    regions: Mapping[str, RegionShare],
    present: Collection[str],
    counts: Mapping[str, int],
) -> dict[str, int]:
    """Decide how many replicas go to which region. ``regions`` are those that answer; it stays where it is ``present``; empty without regions.

    Where no region has room the best one takes it: a full cluster says so itself.
    """
    placed = {
        region: share.replicas
        for region, share in regions.items()
        if share.weight > 0 and share.replicas
    }
    rest = max(replicas - sum(placed.values()), 0 if placed else 1)
    ranked = ranking(name, regions)
    if not rest or not ranked:
        return placed
    staying = [region for region in ranked if region in present and region not in placed]
    roomy = [
        region
        for region in ranked
        if region in present or regions[region].has_room(counts.get(region, 0))
    ]
    home = (staying or roomy or ranked)[0]
    return {**placed, home: placed.get(home, 0) + rest}


def _score(name: str, region: str, weight: float) -> float:
    digest = hashlib.sha256(f"{region}\0{name}".encode()).digest()
    number = (int.from_bytes(digest[:8]) + 0.5) / 2**64
    return -weight / math.log(number)
