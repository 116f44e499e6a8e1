"""Counts in memory what alerts and the service level need, until the process writes it into the database.

Prometheus' counters are of one process and begin at 0 with it; these are added up over all processes, and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from guanaco_server.statistics.buckets import MOST, bucket_of

ANSWERED = "answered"
FAILED = "failed"
PROMPT_TOKENS = "prompt_tokens"
CACHED_TOKENS = "cached_tokens"
TURNS = "turns"  # whole replies of every kind of chat, where ANSWERED counts what the service level counts
ERRORS = "errors"
RATINGS = "ratings"
FIRST_TOKEN = "first_token:"  # noqa: S105 - no secret; a bucket's number follows (statistics/buckets.py)

MEASURES = (
    ANSWERED,
    FAILED,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    *(f"{FIRST_TOKEN}{bucket}" for bucket in range(MOST)),
)


class ServiceTally:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note_reply(self, is_answered: bool) -> None:
        self._counts[ANSWERED if is_answered else FAILED] += 1

    def note_turn(self, outcome: str) -> None:
        """Count a reply that has ended: ``ok``, ``abandoned``, or with an error's code."""
        if outcome != "abandoned":
            self._counts[TURNS if outcome == "ok" else ERRORS] += 1

    def note_rating(self) -> None:
        self._counts[RATINGS] += 1

    def note_first_token(self, seconds: float) -> None:
        self._counts[f"{FIRST_TOKEN}{bucket_of(seconds)}"] += 1

    def note_prompt(self, tokens: int, cached_tokens: int) -> None:
        self._counts[PROMPT_TOKENS] += tokens
        self._counts[CACHED_TOKENS] += cached_tokens

    def take(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return {measure: count for measure, count in counts.items() if count}

    def put_back(self, counts: Mapping[str, int]) -> None:
        """Count again what could not be written."""
        self._counts.update(counts)
