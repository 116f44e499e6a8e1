"""A submission's ratings as the viewer reads them: filtered, a page at a time.

The one place that knows how ratings are searched. Filters are applied while pages of the feedback service go
by; a request looks at no more than ``LOOKED_AT`` ratings and then says where to look on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlencode

from guanaco.feedback import Feedback, FeedbackPage
from guanaco_server.accounts.service import Account
from guanaco_server.feedback.service import FeedbackService

PAGE_RATINGS = 25
READ_AT_ONCE = 100
LOOKED_AT = 1_000


@dataclass(frozen=True)
class RatingFilter:
    """``length`` counts the messages that were not deleted; ``until`` is a day that still counts."""

    thumbs_up: bool | None = None
    text: str = ""
    bot: str = ""
    since: date | None = None
    until: date | None = None
    min_length: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == RatingFilter()

    def holds(self, rating: Feedback) -> bool:
        return all(
            (
                self.thumbs_up is None or rating.thumbs_up is self.thumbs_up,
                not self.text or _says(rating, self.text.casefold()),
                not self.bot or self.bot.casefold() in rating.bot_name.casefold(),
                self.since is None or rating.at >= _begin(self.since),
                self.until is None or rating.at < _begin(self.until) + timedelta(days=1),
                self.min_length is None or length(rating) >= self.min_length,
            )
        )

    def query(self) -> str:
        """As a link carries it; empty without a filter."""
        values = {
            "rating": {True: "up", False: "down", None: ""}[self.thumbs_up],
            "text": self.text,
            "bot": self.bot,
            "since": self.since.isoformat() if self.since else "",
            "until": self.until.isoformat() if self.until else "",
            "length": str(self.min_length) if self.min_length is not None else "",
        }
        return urlencode({name: value for name, value in values.items() if value})


class RatingReader:
    def __init__(self, feedback: FeedbackService) -> None:
        self._feedback = feedback

    async def page(
        self, account: Account, submission_id: str, wanted: RatingFilter, cursor: str | None
    ) -> FeedbackPage:
        """``next_cursor`` is None when there is nothing after the page."""
        found: list[Feedback] = []
        seen = 0
        size = PAGE_RATINGS if wanted.is_empty else READ_AT_ONCE
        while True:
            page = await self._feedback.page(account, submission_id, cursor, size)
            for item in page.items:
                seen += 1
                if wanted.holds(item):
                    found.append(item)
            cursor = page.next_cursor
            if len(page.items) < size:
                return FeedbackPage(items=found, next_cursor=None)
            if len(found) >= PAGE_RATINGS or seen >= LOOKED_AT:
                return FeedbackPage(items=found, next_cursor=cursor)

    async def find(self, account: Account, submission_id: str, feedback_id: str) -> Feedback:
        return await self._feedback.find(account, submission_id, feedback_id)

    async def lines(
        self, account: Account, submission_id: str, wanted: RatingFilter
    ) -> AsyncIterator[bytes]:
        """All that the filter lets through, as JSON lines."""
        items = await self._feedback.stream(account, submission_id)

        async def encoded() -> AsyncIterator[bytes]:
            async for item in items:
                if wanted.holds(item):
                    yield item.model_dump_json().encode() + b"\n"

        return encoded()


def length(rating: Feedback) -> int:
    """Messages that were not deleted, both sides."""
    return sum(not message.is_deleted for message in rating.messages)


def _says(rating: Feedback, words: str) -> bool:
    return words in rating.text.casefold() or any(
        words in message.content.casefold() for message in rating.messages
    )


def _begin(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
