"""What one conversation adds to its submission's tally. docs/scores.md has each definition in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise

from guanaco.chat import Sender
from guanaco_server.chat.conversations.records import RecordedMessage
from guanaco_server.leaderboard.estimates import bucket_of
from guanaco_server.leaderboard.tally import Tally

PPM = 1_000_000
AWAY_MS = 300_000  # a user who was silent for longer than five minutes was away, not writing


@dataclass(frozen=True)
class Measured:
    """A conversation's tally, and the first two days (UTC, as ordinals) on which its user wrote."""

    tally: Tally
    first_day: int | None
    second_day: int | None


def measure(messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measured:
    """Of all messages in their order, deleted ones too."""
    kept = [message for message in messages if not message.is_deleted]
    counts = {"conversations": 1}
    if is_rated:
        counts |= {"rated": 1, f"length:{len(kept)}": 1}
        counts |= {"length.sum": len(kept), "length.sq": len(kept) ** 2}
    for addition in (_replies(messages), _repetition(kept), _writing(kept)):
        for name, count in addition:
            counts[name] = counts.get(name, 0) + count
    days = sorted({_day(message.at) for message in messages if message.sender is Sender.USER})
    return Measured(
        Tally({name: count for name, count in counts.items() if count}),
        first_day=days[0] if days else None,
        second_day=days[1] if len(days) > 1 else None,
    )


def _replies(messages: Sequence[RecordedMessage]) -> Iterator[tuple[str, int]]:
    """Times of every reply that a user waited for, and how many were regenerated."""
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
    """Each user message that answers a bot's: how long it took, what was written and what was read."""
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
