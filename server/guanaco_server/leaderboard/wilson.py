"""How sure a ratio is."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054  # the standard normal's 97.5 % quantile


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """The score interval of a binomial proportion, within [0, 1]; ``trials`` is at least 1.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    ratio = successes / trials
    shrink = 1 + z * z / trials
    centre = (ratio + z * z / (2 * trials)) / shrink
    spread = z / shrink * math.sqrt(ratio * (1 - ratio) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - spread), min(1.0, centre + spread)
