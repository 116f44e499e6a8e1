"""Counts of durations in buckets, each a quarter longer than the one before; small, and two of them can be added."""

from __future__ import annotations

import math
from collections.abc import Sequence

FACTOR = 1.25
MOST = 80  # the last begins at 45,000 s


def bucket_of(wait_s: float) -> int:
    """Return the bucket of a wait; each is a quarter longer than the one before, the first ends at a millisecond."""
    wait_ms = wait_s * 1_000
    if wait_ms <= 1:
        return 0
    return min(MOST - 1, 1 + int(math.log(wait_ms) / math.log(FACTOR)))


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Add two rows of buckets."""
    length = max(len(one), len(other))
    padded = [[*row, *[0] * (length - len(row))] for row in (one, other)]
    return [a + b for a, b in zip(*padded, strict=True)]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the time in seconds below which this share lies, within its bucket as if spread evenly; None without any."""
    wanted = sum(counts) * share
    if not wanted:
        return None
    passed = 0
    for bucket, count in enumerate(counts):
        if count and passed + count >= wanted:
            begin_ms = FACTOR ** (bucket - 1) if bucket else 0.0
            end_ms = FACTOR**bucket
            return (begin_ms + (end_ms - begin_ms) * (wanted - passed) / count) / 1_000
        passed += count
    return None
