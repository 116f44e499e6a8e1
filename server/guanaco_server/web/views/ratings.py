"""A submission's ratings as the viewer reads them: filtered, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlencode

from pydantic import ValidationError

from guanaco.errors import FeedbackNotFound, InvalidInput
from guanaco.feedback import ExportFormat, Feedback, FeedbackFilter, Order
from guanaco_server.accounts.service import Account
from guanaco_server.feedback import cursors
from guanaco_server.feedback.exports.export import Export
from guanaco_server.feedback.service import FeedbackService, Quote, RatingOverview
from guanaco_server.http.errors import describe_problems
from guanaco_server.leaderboard.flags.service import FlagService

PAGE_RATINGS = 25
OPPOSITE: dict[Order, Order] = {"newest": "oldest", "oldest": "newest"}


QUOTES = 6
MOST_QUOTES = 30  # of which some may be of ratings that a rule has left out


@dataclass(frozen=True)
class RatingFilter:
    """The lengths count the messages that were not deleted; ``until`` is a day that still counts."""

    thumbs_up: bool | None = None
    text: str = ""
    bot: str = ""
    since: date | None = None
    until: date | None = None
    min_length: int | None = None
    max_length: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == RatingFilter()

    def wanted(self) -> FeedbackFilter:
        """Return the same, as the feedback service takes it; InvalidInput where nothing could hold."""
        try:
            return FeedbackFilter(
                rating=None if self.thumbs_up is None else "up" if self.thumbs_up else "down",
                search=self.text or None,
                bot=self.bot or None,
                since=_begin(self.since) if self.since else None,
                until=_begin(self.until) + timedelta(days=1) if self.until else None,
                min_length=self.min_length,
                max_length=self.max_length,
            )
        except ValidationError as error:
            raise InvalidInput(describe_problems(error.errors())) from None

    def query(self) -> str:
        """Return the filter as a link carries it; empty without one."""
        values = {
            "rating": {True: "up", False: "down", None: ""}[self.thumbs_up],
            "text": self.text,
            "bot": self.bot,
            "since": self.since.isoformat() if self.since else "",
            "until": self.until.isoformat() if self.until else "",
            "length": str(self.min_length) if self.min_length is not None else "",
            "up_to": str(self.max_length) if self.max_length is not None else "",
        }
        return urlencode({name: value for name, value in values.items() if value})


@dataclass(frozen=True)
class Place:
    """A rating, and the cursor of the page that it is on; None is the first page's."""

    cursor: str | None
    rating_id: str


@dataclass(frozen=True)
class RatingPage:
    """``before`` is the last rating of the page before; None on the first."""

    items: Sequence[Feedback]
    next_cursor: str | None
    before: Place | None


class RatingReader:
    def __init__(self, feedback: FeedbackService, flags: FlagService) -> None:
        self._feedback = feedback
        self._flags = flags

    async def page(
        self,
        account: Account,
        submission_id: str,
        wanted: RatingFilter,
        cursor: str | None,
        order: Order,
    ) -> RatingPage:
        """``next_cursor`` is None when there is nothing after the page."""
        found, following = await self._read(account, submission_id, wanted, cursor, order)
        next_cursor = cursors.including(following, order) if following else None
        before = cursor and await self._before(account, submission_id, wanted, cursor, order)
        return RatingPage(found, next_cursor, before or None)

    async def _before(
        self,
        account: Account,
        submission_id: str,
        wanted: RatingFilter,
        cursor: str,
        order: Order,
    ) -> Place | None:
        """Return the page that ends with what the cursor names, read backwards."""
        back = OPPOSITE[order]
        begin = cursors.including(cursor, back)
        found, further = await self._read(account, submission_id, wanted, begin, back)
        return Place(further, found[0].id) if found else None

    async def _read(
        self,
        account: Account,
        submission_id: str,
        wanted: RatingFilter,
        cursor: str | None,
        order: Order,
    ) -> tuple[Sequence[Feedback], str | None]:
        """Return a page's ratings, and the cursor that names the one after them, if there is one."""
        page = await self._feedback.page(
            account, submission_id, cursor, PAGE_RATINGS + 1, wanted.wanted(), order
        )
        has_more = len(page.items) > PAGE_RATINGS
        return page.items[:PAGE_RATINGS], page.next_cursor if has_more else None

    async def overview(
        self, account: Account, submission_id: str, wanted: RatingFilter
    ) -> RatingOverview:
        return await self._feedback.overview(account, submission_id, wanted.wanted())

    async def quotes(self, submission_id: str) -> Sequence[Quote]:
        """Return the newest quotes of ratings that count."""
        found = await self._feedback.quotes(submission_id, MOST_QUOTES)
        if not found:
            return found
        left_out = await self._flags.left_out([one.feedback_id for one in found])
        return [one for one in found if one.feedback_id not in left_out][:QUOTES]

    async def find(self, account: Account, submission_id: str, feedback_id: str) -> Feedback:
        """FeedbackNotFound also for another submission's rating."""
        found = await self._feedback.find(account, feedback_id)
        if found.submission_id != submission_id:
            raise FeedbackNotFound(feedback_id)
        return found

    async def export(
        self, account: Account, submission_id: str, wanted: RatingFilter, form: ExportFormat
    ) -> Export:
        """Yield all that the filter lets through, as a file."""
        return await self._feedback.export(account, submission_id, wanted.wanted(), form)


def _begin(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
