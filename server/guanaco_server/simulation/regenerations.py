"""Says how many compared regenerations tell the lead of one submission over another, by the interval that the platform shows."""

from __future__ import annotations

from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha

MOST = 10_000_000


def regenerations_until(within: float, pairs: int, alpha: float) -> int:
    """Return how many compared regenerations of a pair bring both ends of its lead to within the margin of it.

    The error is shared by all pairs, and half of a pair's is for each of its two kinds of conversations (duels/scores.py). The coin is fair,
    so about half of the comparisons speak for either.
    """
    share = shared_alpha(max(1, pairs), alpha) / 2

    def is_enough(of_each: int) -> bool:
        low, high = proportion_sequence(of_each / 2, of_each, share)
        return high - low <= within  # twice half the width, of both kinds together and halved

    low, high = 1, 2
    while not is_enough(high) and high < MOST:
        low, high = high, 2 * high
    while high - low > max(1, low // 1_000):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return 2 * high
