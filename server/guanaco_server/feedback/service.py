"""Records ratings of backends, and shows developers anonymized copies of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.contract import reader
from guanaco.errors import FeedbackNotFound, SubmissionNotFound
from guanaco.feedback import (
    ExportFormat,
    Feedback,
    FeedbackFilter,
    FeedbackPage,
    FeedbackRecorded,
    FeedbackRequest,
    Order,
    Rating,
    RatingChange,
    RawFeedback,
)
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database, PinnedReader
from guanaco_server.feedback import cursors, queries
from guanaco_server.feedback.changes import OnChanged, RatingChanger
from guanaco_server.feedback.copies import WITHHELD, CopyService
from guanaco_server.feedback.cursors import NumberRange
from guanaco_server.feedback.exports.export import MEDIA_TYPES, Export, encoded
from guanaco_server.feedback.recording import RatingRecorder
from guanaco_server.feedback.tables import FeedbackRow
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

EVERYTHING = FeedbackFilter()
EXPORT_PAGE = 1_000  # ratings with their conversations, in memory at once
READ_RAW = "read raw feedback"
HIDE_QUOTE = "hide quote"
MOST_COUNTED = 10_000  # newest ratings that an overview counts
BOTS_LISTED = 50


@dataclass(frozen=True)
class Quote:
    """Anonymized words of a user who agreed to have them shown. Neither their pseudonym nor their character is in it."""

    feedback_id: str
    text: str
    thumbs_up: bool
    at: datetime


@dataclass(frozen=True)
class RatingOverview:
    """``up`` and ``down`` are those that fit a filter, ``total`` all; MOST_COUNTED stands for that many or more."""

    total: int
    up: int
    down: int
    bots: Sequence[tuple[str, int]]

    @property
    def fitting(self) -> int:
        return self.up + self.down


class FeedbackService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        conversations: ConversationService,
        copies: CopyService,
        audit: AuditLog,
        metrics: Metrics,
        on_changed: OnChanged,
    ) -> None:
        """``on_changed`` is called, within the transaction, for each rating that is changed or withdrawn."""
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._conversations = conversations
        self._copies = copies
        self._audit = audit
        self._metrics = metrics
        self._recorder = RatingRecorder(database, clock, conversations)
        self._changer = RatingChanger(database, clock, conversations, audit, on_changed)
        self._listeners: list[Callable[[], None]] = []

    def on_rated(self, listener: Callable[[], None]) -> None:
        """Call a listener after each rating that this process has recorded."""
        self._listeners.append(listener)

    async def rate(
        self, account: Account, conversation_id: str, request: FeedbackRequest
    ) -> FeedbackRecorded:
        """Record a rating.

        Raises:
            AlreadyRated: The conversation has a rating, also when two requests race.
            TooManyRatings: The user has given too many within a minute.
        """
        recorded = await self._recorder.record(account, conversation_id, request)
        self._metrics.note_vote(request.thumbs_up)
        self._tell()
        return recorded

    async def read(self, account: Account, conversation_id: str) -> Rating:
        """Return the rating of one's own conversation; ConversationNotFound, NotRated."""
        return await self._changer.read(account, conversation_id)

    async def change(
        self, account: Account, conversation_id: str, request: FeedbackRequest
    ) -> Rating:
        """Put another rating in the place of one that is younger than a day.

        Raises:
            NotRated: The conversation has no rating.
            RatingSettled: It can no longer be changed.
        """
        changed = await self._changer.change(account, conversation_id, request)
        self._tell()
        return changed

    async def withdraw(self, account: Account, conversation_id: str) -> None:
        """Take back a rating that is younger than a day; the conversation can be rated again. NotRated, RatingSettled."""
        await self._changer.withdraw(account, conversation_id)
        self._tell()

    async def changes(self, account: Account, feedback_id: str) -> list[RatingChange]:
        """Return what a rating was before, also where it was withdrawn. The reading is noted in the audit log first."""
        return await self._changer.changes(account, feedback_id)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def page(
        self,
        account: Account,
        submission_id: str,
        cursor: str | None,
        limit: int,
        wanted: FeedbackFilter = EVERYTHING,
        order: Order = "oldest",
    ) -> FeedbackPage:
        """Return a page of copies. The last cursor of ``oldest`` order later leads to what is new; None: nothing follows."""
        await self._submissions.ensure_visible(account, submission_id)
        within = NumberRange.following(cursor, order)
        await self._copies.make_missing(submission_id)
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.copies(session, submission_id, wanted, within, limit, order)
        return FeedbackPage(
            items=[reader(Feedback).from_json(document) for _, document in rows],
            next_cursor=cursors.encode(rows[-1][0]) if rows else None,
        )

    async def overview(
        self, account: Account, submission_id: str, wanted: FeedbackFilter
    ) -> RatingOverview:
        """Count the copies, all and those that fit, and list the bots that were rated most."""
        await self._submissions.ensure_visible(account, submission_id)
        async with self._database.read(may_be_stale=True) as session:
            fitting = await queries.votes(session, submission_id, wanted, MOST_COUNTED)
            every = fitting
            if wanted != EVERYTHING:
                every = await queries.votes(session, submission_id, EVERYTHING, MOST_COUNTED)
            bots = await queries.bots(session, submission_id, BOTS_LISTED, MOST_COUNTED)
        return RatingOverview(
            total=sum(every.values()),
            up=fitting.get(True, 0),
            down=fitting.get(False, 0),
            bots=[(name, count) for name, count in bots],
        )

    async def quotes(self, submission_id: str, limit: int) -> list[Quote]:
        """Return the newest words that users agreed to have shown to everybody, anonymized."""
        async with self._database.read(may_be_stale=True) as session:
            found = await queries.quotable(session, submission_id, limit)
        copies = [reader(Feedback).from_json(document) for document in found]
        return [
            Quote(copy.id, copy.text, copy.thumbs_up, copy.at)
            for copy in copies
            if copy.text.strip() not in ("", WITHHELD)
        ]

    async def hide_quote(self, account: Account, feedback_id: str) -> None:
        """Quote a rating's words no longer, as if its user had never agreed. It is noted in the audit log; twice changes nothing."""

        async def hide(session: AsyncSession) -> None:
            row = await queries.by_id(session, feedback_id)
            if row is None:
                raise FeedbackNotFound(feedback_id)
            row.quotable_as_of = None
            await queries.hide_copy(session, feedback_id)
            await self._audit.note(session, account, HIDE_QUOTE, feedback_id)

        await self._database.write_unit(hide)

    async def find(self, account: Account, feedback_id: str) -> Feedback:
        """Return one rating's copy; FeedbackNotFound for another developer's, or before it is anonymized."""
        found = None
        for may_be_stale in (True, False):  # a copy of this moment is not on the replica yet
            if found is None:
                async with self._database.read(may_be_stale=may_be_stale) as session:
                    found = await queries.copy_of(session, feedback_id)
        if found is None:
            raise FeedbackNotFound(feedback_id)
        submission_id, document = found
        try:
            await self._submissions.ensure_visible(account, submission_id)
        except SubmissionNotFound:
            raise FeedbackNotFound(feedback_id) from None
        return reader(Feedback).from_json(document)

    async def export(
        self,
        account: Account,
        submission_id: str,
        wanted: FeedbackFilter = EVERYTHING,
        form: ExportFormat = "jsonl",
        cursor: str | None = None,
    ) -> Export:
        """Export all copies that follow the cursor now, oldest first, page by page."""
        await self._submissions.ensure_visible(account, submission_id)
        after = cursors.decode(cursor)
        await self._copies.make_missing(submission_id)
        source = await self._database.reader()
        async with source.read() as session:
            until = max(after, await queries.last_number(session, submission_id))
        documents = self._documents(source, submission_id, wanted, NumberRange(after, until))
        return Export(
            file_name=f"{submission_id}.{form}",
            media_type=MEDIA_TYPES[form],
            next_cursor=cursors.encode(until),
            chunks=encoded(documents, form),
        )

    async def stream(self, account: Account, submission_id: str) -> AsyncIterator[Feedback]:
        """Yield all copies that there are now, oldest first."""
        await self._submissions.ensure_visible(account, submission_id)
        await self._copies.make_missing(submission_id)
        source = await self._database.reader()
        async with source.read() as session:
            until = await queries.last_number(session, submission_id)
        within = NumberRange(0, until)
        return self._read(self._documents(source, submission_id, EVERYTHING, within))

    async def read_raw(self, account: Account, feedback_id: str) -> RawFeedback:
        """Return a rating as it was given. The reading is noted in the audit log first."""

        async def read(session: AsyncSession) -> FeedbackRow:
            row = await queries.by_id(session, feedback_id)
            if row is None:
                raise FeedbackNotFound(feedback_id)
            await self._audit.note(session, account, READ_RAW, feedback_id)
            return row

        row = await self._database.write_unit(read)
        return RawFeedback(
            id=row.id,
            user_id=row.user_id,
            thumbs_up=row.thumbs_up,
            text=row.text,
            at=row.created_at,
            conversation=await self._conversations.read(account, row.conversation_id),
        )

    async def lock_of_conversations(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> tuple[str, ...]:
        """Lock the ratings of these conversations, so that nobody copies them until the caller's transaction ends."""
        return tuple(await queries.lock_of_conversations(session, conversation_ids))

    async def rated_submissions(
        self, session: AsyncSession, feedback_ids: Sequence[str]
    ) -> set[str]:
        """Return the submissions that these ratings belong to, within the caller's transaction."""
        return await queries.rated_submissions(session, feedback_ids)

    async def erase(
        self,
        session: AsyncSession,
        feedback_ids: Sequence[str],
        conversation_ids: Sequence[str],
    ) -> None:
        """Delete ratings, their copies, and earlier ratings of the conversations, within the caller's transaction."""
        await queries.delete_changes(session, conversation_ids)
        await queries.delete_ratings(session, feedback_ids)

    @staticmethod
    async def _read(documents: AsyncIterator[Sequence[str]]) -> AsyncIterator[Feedback]:
        async for page in documents:
            for document in page:
                yield reader(Feedback).from_json(document)

    @staticmethod
    async def _documents(
        source: PinnedReader, submission_id: str, wanted: FeedbackFilter, within: NumberRange
    ) -> AsyncIterator[Sequence[str]]:
        """Yield pages, each from a transaction of its own.

        A slow reader holds none open, and what is erased meanwhile is not exported.
        """
        while True:
            async with source.read() as session:
                rows = await queries.copies(session, submission_id, wanted, within, EXPORT_PAGE)
            if rows:
                yield [document for _, document in rows]
            if len(rows) < EXPORT_PAGE:
                return
            within = NumberRange(rows[-1][0], within.until)
