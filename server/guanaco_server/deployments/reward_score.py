"""One number from a reward model's logits: of one label its logit, of several the log odds of the last.

The last label is the good one, as 1 is where the labels are 0 and 1, and five stars where they are stars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def reward_score(logits: Sequence[float]) -> float:
    """Higher is better."""
    *others, last = logits
    if not others:
        return last
    highest = max(others)
    return last - highest - math.log(sum(math.exp(other - highest) for other in others))
