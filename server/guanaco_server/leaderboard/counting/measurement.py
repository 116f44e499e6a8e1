"""Measures one conversation, and whether its user came back. docs/scores.md defines each metric in words.

The definitions have a version, which is stored with each measurement. When it is raised, conversations with an older
version are measured again in the background (counter.py). Rules for a change:

- Raise ``DEFINITIONS.version``.
- Give a count whose definition changes a new name, so that old and new counts never add up to a wrong sum.
- Note the version of a new metric in ``ranking/metrics.py``: it is shown once all conversations have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import pairwise
from typing import Protocol

from guanaco.chat import Sender
from guanaco_server.chat.conversations.records import RecordedMessage
from guanaco_server.leaderboard.counting.aggregate import Aggregate

MARK = "definition"  # each aggregate has a count "definition:3" if it was measured by version 3
PPM = 1_000_000
AWAY_MS = 300_000  # a user who was silent for longer than five minutes was away, not writing
BUCKET_RATIO = (
    1.05  # between neighbouring time buckets: a time read from one is off by 2.5 % at most
)


@dataclass(frozen=True)
class Measurement:
    """A conversation's aggregate, and the first two days (UTC, as ordinals) on which its user wrote."""

    aggregate: Aggregate
    first_day: int | None
    second_day: int | None


@dataclass(frozen=True)
class Visit:
    """The first day (UTC, an ordinal) on which a user wrote to a submission, and whether they wrote on the next."""

    first_day: int
    has_returned: bool

    def aggregate(self) -> Aggregate:
        counts = {f"came:{self.first_day}": 1}
        return Aggregate(counts | ({f"returned:{self.first_day}": 1} if self.has_returned else {}))


class Measure(Protocol):
    def __call__(self, messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measurement: ...


@dataclass(frozen=True)
class Definitions:
    """One version of what is measured of a conversation."""

    version: int
    measure: Measure

    def apply(self, messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measurement:
        """Measure a conversation and mark the aggregate with the version. Version 1 has no mark."""
        measurement = self.measure(messages, is_rated=is_rated)
        if self.version == 1:
            return measurement
        mark = Aggregate({f"{MARK}:{self.version}": 1})
        return replace(measurement, aggregate=measurement.aggregate + mark)


def is_measured_since(aggregate: Aggregate, version: int) -> bool:
    """Tell whether every conversation in the aggregate was measured by ``version`` or a later one."""
    if version == 1:
        return True
    measured = sum(count for by, count in aggregate.histogram(MARK).items() if by >= version)
    return measured == aggregate["conversations"]


def measure(messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measurement:
    """Measure a conversation.

    Args:
        messages: All messages in their order, including deleted ones.
        is_rated: Whether the conversation has a rating.
    """
    kept = [message for message in messages if not message.is_deleted]
    counts = {"conversations": 1}
    if is_rated:
        counts |= {"rated": 1, f"length:{len(kept)}": 1}
        counts |= {"length.sum": len(kept), "length.sq": len(kept) ** 2}
    for additions in (_replies(messages), _repetition(kept), _writing(kept)):
        for name, count in additions:
            counts[name] = counts.get(name, 0) + count
    days = sorted({_day(message.at) for message in messages if message.sender is Sender.USER})
    return Measurement(
        Aggregate({name: count for name, count in counts.items() if count}),
        first_day=days[0] if days else None,
        second_day=days[1] if len(days) > 1 else None,
    )


DEFINITIONS = Definitions(version=1, measure=measure)


def visit_of(days: Iterable[int]) -> Visit | None:
    """Compute a user's visit from the days of all conversations with a submission; the first two of each suffice."""
    found = set(days)
    if not found:
        return None
    first = min(found)
    return Visit(first, first + 1 in found)


def bucket_of(milliseconds: float) -> int:
    """Return the bucket of a time. All times below a millisecond share one bucket."""
    return math.floor(math.log(max(1.0, milliseconds)) / math.log(BUCKET_RATIO))


def bucket_middle(bucket: int) -> float:
    """Return the geometric middle of a bucket in milliseconds."""
    return float(BUCKET_RATIO ** (bucket + 0.5))


def _replies(messages: Sequence[RecordedMessage]) -> Iterator[tuple[str, int]]:
    """Count the times of each reply that a user waited for, and the replies that were regenerated."""
    replies = [message for message in messages if message.sender is Sender.BOT]
    for reply in replies:
        if reply.ttft_ms is not None:
            yield f"ttft:{bucket_of(reply.ttft_ms)}", 1
        if reply.total_ms is not None:
            yield f"reply:{bucket_of(reply.total_ms)}", 1
    if replies:
        all_of, deleted = len(replies), sum(reply.is_deleted for reply in replies)
        yield "regenerate.n", 1
        yield "regenerate.x", all_of
        yield "regenerate.y", deleted
        yield "regenerate.xx", all_of * all_of
        yield "regenerate.xy", all_of * deleted
        yield "regenerate.yy", deleted * deleted


def _repetition(kept: Sequence[RecordedMessage]) -> Iterator[tuple[str, int]]:
    words = [
        frozenset(message.content.lower().split())
        for message in kept
        if message.sender is Sender.BOT
    ]
    pairs = [len(a & b) * PPM // len(a | b) for a, b in pairwise(words) if a or b]
    if pairs:
        similarity = sum(pairs) // len(pairs)
        yield "repetition.n", 1
        yield "repetition.sum", similarity
        yield "repetition.sq", similarity * similarity


def _writing(kept: Sequence[RecordedMessage]) -> Iterator[tuple[str, int]]:
    """Count the time (t), the characters written (x) and the characters read (y) of each answer to the bot."""
    for read, written in pairwise(kept):
        if (read.sender, written.sender) != (Sender.BOT, Sender.USER):
            continue
        t = round((written.at - read.at).total_seconds() * 1_000)
        if not 0 <= t <= AWAY_MS:
            continue
        x, y = len(written.content), len(read.content)
        yield from (("writing.n", 1), ("writing.x", x), ("writing.y", y), ("writing.t", t))
        yield from (("writing.xx", x * x), ("writing.xy", x * y), ("writing.yy", y * y))
        yield from (("writing.xt", x * t), ("writing.yt", y * t), ("writing.tt", t * t))


def _day(at: datetime) -> int:
    return date(at.year, at.month, at.day).toordinal()
