"""Limits how often the reconciler may act on one deployment, by a token bucket whose refill slows down.

The first ``BURST`` actions are free. After that a token comes every ``delay``, which doubles each time the bucket
runs empty, from ``first_delay_s`` to ``LONGEST_DELAY_S``. A bucket that is full again starts from the beginning. Something done
once in ``first_delay_s`` is never slowed down.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from guanaco_server.runtime.clock import Clock

BURST = 3
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 300.0


@dataclass
class _Bucket:
    at: datetime
    delay_s: float
    tokens: float = BURST


class Backoff:
    def __init__(self, clock: Clock, first_delay_s: float = FIRST_DELAY_S) -> None:
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._buckets: dict[str, _Bucket] = {}

    def allows(self, name: str) -> bool:
        """Return whether to act on it now; True takes a token."""
        now = self._clock.now()
        bucket = self._buckets.setdefault(name, _Bucket(now, self._first_delay_s))
        gained = (now - bucket.at).total_seconds() / bucket.delay_s
        bucket.at, bucket.tokens = now, min(BURST, bucket.tokens + gained)
        if bucket.tokens >= BURST:
            bucket.delay_s = self._first_delay_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        if bucket.tokens < 1:
            bucket.delay_s = min(bucket.delay_s * 2, LONGEST_DELAY_S)
        return True

    def forget(self, name: str) -> None:
        """Forget this name: the action has helped."""
        self._buckets.pop(name, None)

    def forget_all_but(self, names: set[str]) -> None:
        for name in self._buckets.keys() - names:
            del self._buckets[name]
