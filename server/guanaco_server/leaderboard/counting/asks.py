"""Reads the conversations that could be asked for a rating, in the order in which they could, once the time to answer is over.

Left out is what was known before the draw not to be a stranger's first opinion: conversations that the submission's own account had, and those
that were rated before. The first rating counts, whatever its user made of it since: no rule that looks at ratings leaves any out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import RecordedAsk
from guanaco_server.feedback import records as feedback_records
from guanaco_server.statistics.answer_lines import AskedConversations

READ_AT_ONCE = 5_000
LENGTHS = ("said_chars", "reply_chars", "regenerated", "recent", "minutes")  # their logarithms
SCORES = ("reward",)


@dataclass
class AskedConversationCache:
    """A competition's conversations that could be asked, in columns. Only newer ones are read."""

    waiting: int = 0
    _read_until: tuple[datetime, str] | None = None
    _read: int = 0
    _places: dict[str, int] = field(default_factory=dict)
    _submissions: list[int] = field(default_factory=list)
    _outcomes: list[tuple[float, float, float, float]] = field(default_factory=list)
    _signals: list[list[float]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The submissions, by their places in the columns."""
        return list(self._places)

    async def has_lost(self, session: AsyncSession, competition: str) -> bool:
        """Tell whether conversations that were read were deleted since: then a new book is to be made."""
        until = self._read_until
        return (
            until is not None
            and await chat_records.count_asks(session, competition, until) != self._read
        )

    async def refresh(
        self,
        session: AsyncSession,
        competition: Competition,
        owners: Mapping[str, str],
        now: datetime,
    ) -> bool:
        """Read what is new, and return whether anything has changed. ``owners`` are the accounts of submissions."""
        has_changed = False
        end = now if competition.frozen_at is None else min(now, competition.frozen_at)
        while True:
            found = await chat_records.asks(session, competition.id, self._read_until, READ_AT_ONCE)
            over = _first_over(found, end)
            if over:
                await self._take(session, over, owners)
                has_changed = True
            if len(over) < len(found) or len(found) < READ_AT_ONCE:
                break
        total = await chat_records.count_asks(session, competition.id)
        self.waiting = total - self._read if competition.frozen_at is None else 0
        return has_changed

    def columns(self) -> AskedConversations:
        import numpy as np

        outcomes = np.array(self._outcomes, dtype=np.float64).reshape(-1, 4)
        chances, is_asked, answered, up = outcomes.T
        return AskedConversations(
            np.array(self._submissions, dtype=np.int64),
            chances,
            is_asked,
            answered,
            up,
            np.array(self._signals, dtype=np.float64).reshape(-1, len(LENGTHS) + len(SCORES)),
        )

    async def _take(
        self, session: AsyncSession, asks: Sequence[RecordedAsk], owners: Mapping[str, str]
    ) -> None:
        answers = await feedback_records.first_answers(
            session, [one.conversation_id for one in asks]
        )
        for one in asks:
            rated_at, is_up = answers.get(one.conversation_id, (None, False))
            if owners.get(one.submission_id) == one.account_id or (
                rated_at is not None and rated_at <= one.at
            ):
                continue
            place = self._places.setdefault(one.submission_id, len(self._places))
            answered = one.is_asked and rated_at is not None and rated_at < one.until
            self._submissions.append(place)
            self._outcomes.append(
                (one.chance, float(one.is_asked), float(answered), float(answered and is_up))
            )
            self._signals.append(_numbers(one.signals))
        self._read += len(asks)
        self._read_until = (asks[-1].at, asks[-1].conversation_id)


def _first_over(asks: Sequence[RecordedAsk], end: datetime) -> Sequence[RecordedAsk]:
    """Return the first ones, as far as the time to answer of all is over: the order must not depend on the answers."""
    for place, one in enumerate(asks):
        if one.until > end:
            return asks[:place]
    return asks


def _numbers(signals: Mapping[str, Any]) -> list[float]:
    """Read signals as numbers; NaN for one that is not there, or that this version cannot read."""
    lengths = [_number(signals.get(name)) for name in LENGTHS]
    return [math.log1p(max(0.0, one)) if not math.isnan(one) else one for one in lengths] + [
        _number(signals.get(name)) for name in SCORES
    ]


def _number(value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return math.nan
