"""Prints what the parts of the benchmark found: a median with its spread, and a line while something takes long."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def show(title: str, rows: Mapping[str, Sequence[float]]) -> None:
    print(f"\n{title:34s} {'median':>9s} {'min':>9s} {'max':>9s} {'of':>5s}")
    for name, values in rows.items():
        told = spread(values)
        print(
            f"  {name:32s} {told['median']:9.3f} {told['min']:9.3f} {told['max']:9.3f} {len(values):5d}"
        )


def talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
