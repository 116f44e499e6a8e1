"""Makes the anonymized copies of ratings that developers read.

    load   in one transaction: read ratings without a copy of this version, with their conversations
    make   with no session open, in a thread: replace names by pseudonyms and personal data by tags
    apply  in one transaction: claim the ratings and write the copies; of two processes that made the same, one loses

The ratings themselves are the queue, so nothing is lost when a process dies.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Message
from guanaco.competitions import CHOSEN
from guanaco.feedback import Feedback
from guanaco.submissions import GenerationParams
from guanaco_server.anonymization import anonymizer as anonymization
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.commits import CommitWatch
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries
from guanaco_server.feedback.queries import NewCopy, searchable
from guanaco_server.feedback.tables import FeedbackCopyRow, FeedbackRow
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime import threads
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

logger = logging.getLogger(__name__)

WITHHELD = "<WITHHELD>"
BATCH = 200  # ratings, of which some 330 to 535 a second are loaded, anonymized and stored

CONTENT_VERSION = 3  # 1: the variant of an experiment; 2: a pseudonym per developer; 3: no quotes from chosen chats
VERSION = anonymization.VERSION + CONTENT_VERSION
"""The version of a copy. Raise CONTENT_VERSION when a copy holds something new: every older copy is then made again."""

Variants = Callable[[AsyncSession, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Find the experiment's variant of each conversation; conversations in no experiment are absent."""


@dataclass(frozen=True)
class RatingWithContext:
    """A rating with everything that its copy shows."""

    row: FeedbackRow
    user_name: str
    first_message: str
    params: GenerationParams | None
    messages: Sequence[Message]
    variant: str | None
    developer_id: str


class CopyService:
    def __init__(
        self,
        database: Database,
        submissions: SubmissionService,
        conversations: ConversationService,
        pseudonyms: Pseudonyms,
        anonymizer: Anonymizer,
        variants: Variants,
        version: int = VERSION,
    ) -> None:
        self._database = database
        self._submissions = submissions
        self._conversations = conversations
        self._pseudonyms = pseudonyms
        self._anonymizer = anonymizer
        self._version = version
        self._variants = variants

    async def make(self, limit: int = BATCH) -> int:
        """Copy a batch of the waiting ratings, and return how many there were."""
        return await self._make(self._version, None, limit)

    async def make_missing(self, submission_id: str) -> None:
        """Copy up to a batch of a submission's ratings without a copy now, so that readers need not wait for the loop."""
        await self._make(1, submission_id, BATCH)

    async def waiting_since(self) -> datetime | None:
        """Return when the oldest rating without a copy was given."""
        async with self._database.read() as session:
            return await queries.oldest_without_copy(session)

    async def _make(self, below: int, submission_id: str | None, limit: int) -> int:
        raw = await self._load(below, submission_id, limit)
        if raw:
            revisions = {one.row.id: one.row.revision for one in raw}
            # Whoever asks for one submission's ratings waits for them.
            place = threads.BACKGROUND if submission_id is None else threads.PAGES
            await self._apply(await place.run(self._copies, raw), revisions)
        return len(raw)

    async def _load(
        self, below: int, submission_id: str | None, limit: int
    ) -> list[RatingWithContext]:
        async with self._database.read() as session:
            rows = await queries.without_copy(session, below, submission_id, limit)
            if not rows:
                return []
            ids = [row.conversation_id for row in rows]
            messages = await self._conversations.messages(session, ids)
            names = await self._conversations.user_names(session, ids)
            beginnings = await self._conversations.first_messages(session, ids)
            submission_ids = {row.submission_id for row in rows}
            params = await self._submissions.catalog.params(session, submission_ids)
            developers = await self._submissions.catalog.developers(session, submission_ids)
            variants = await self._variants(session, ids)
        return [
            RatingWithContext(
                row,
                names.get(row.conversation_id, ""),
                beginnings.get(row.conversation_id, ""),
                params.get(row.submission_id),
                messages.get(row.conversation_id, ()),
                variants.get(row.conversation_id),
                developers[row.submission_id][0],
            )
            for row in rows
        ]

    async def _apply(self, copies: Mapping[str, NewCopy], revisions: Mapping[str, int]) -> None:
        async def apply(session: AsyncSession) -> None:
            claimed = await queries.claim_copies(session, revisions, self._version)
            if claimed:
                await in_commit_order(session, FeedbackCopyRow.__tablename__)
                await queries.write_copies(
                    session, [copy for key, copy in copies.items() if key in claimed]
                )

        await self._database.write_unit(apply)

    def _copies(self, raw: Sequence[RatingWithContext]) -> dict[str, NewCopy]:
        return {one.row.id: self._copy_or_withhold(one) for one in raw}

    def _copy_or_withhold(self, raw: RatingWithContext) -> NewCopy:
        """Make a copy. A text on which the anonymizer fails is neither shown nor holds up the others."""
        try:
            return self._copy(raw, lambda text: self._anonymizer.text(text, raw.user_name))
        except Exception as error:  # noqa: BLE001 - foreign text in foreign parsers
            logger.error(
                "anonymization failed; texts of %s withheld: %s", raw.row.id, type(error).__name__
            )
            return self._copy(raw, lambda _text: WITHHELD)

    def _copy(self, raw: RatingWithContext, shown: Callable[[str], str]) -> NewCopy:
        row = raw.row
        messages = [m.model_copy(update={"content": shown(m.content)}) for m in raw.messages]
        feedback = Feedback(
            id=row.id,
            submission_id=row.submission_id,
            conversation_id=row.conversation_id,
            competition=row.competition,
            variant=raw.variant,
            user=self._pseudonyms.seen_by(raw.developer_id, user_key(row.account_id, row.user_id)),
            bot_name=shown(row.bot_name),
            first_message=shown(raw.first_message),
            thumbs_up=row.thumbs_up,
            text=shown(row.text),
            at=row.created_at,
            length=sum(not (one.is_deleted or one.is_imported) for one in messages),
            params=raw.params,
            messages=messages,
        )
        return NewCopy(
            feedback_id=row.id,
            submission_id=row.submission_id,
            pseudonym=feedback.user,
            bot_name=feedback.bot_name,
            thumbs_up=row.thumbs_up,
            rated_at=row.created_at,
            length=feedback.length,
            words=searchable("\n".join((feedback.text, *(m.content for m in messages)))),
            document=feedback.model_dump_json(),
            is_quotable=row.may_be_quoted
            and row.competition != CHOSEN  # whoever chose the model could be its developer
            and feedback.text.strip() not in ("", WITHHELD),
        )


POLL_S = 0.5
PAUSE_S = 5.0  # after the database did not answer


class CopyLoop:
    """Makes copies at once when this process records a rating, and within half a second otherwise."""

    def __init__(
        self, copies: CopyService, commits: CommitWatch, clock: Clock, metrics: Metrics
    ) -> None:
        self._copies = copies
        self._commits = commits
        self._clock = clock
        self._metrics = metrics
        self._background = Background("copies of feedback")

    def wake(self) -> None:
        """Look for ratings now."""
        self._commits.wake()

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            try:
                is_done = await self._copies.make() < BATCH
                await self._note_lag()
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning(
                    "copies of feedback failed; retrying in 5 s: %s", type(error).__name__
                )
                await asyncio.sleep(PAUSE_S)
                continue
            if is_done:
                await self._commits.wait(POLL_S)

    async def _note_lag(self) -> None:
        since = await self._copies.waiting_since()
        lag_s = (self._clock.now() - since).total_seconds() if since else 0.0
        self._metrics.note_feedback_lag(max(0.0, lag_s))


PSEUDONYM_DIGITS = 12  # 48 bits: two of a million users share one with a chance of 0.2 %


class Pseudonyms:
    """Computes the names by which developers and admins know users.

    They are keyed (HMAC, RFC 2104), so that nobody without the key can test whether a known id belongs to a pseudonym.
    Users of two backends who have the same id have different pseudonyms. Each developer knows a user by another
    pseudonym, so that developers cannot join what they export; the audit log has one more.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seen_by(self, developer_id: str, user_key: str) -> str:
        """Return the pseudonym of a user for one developer's eyes."""
        return self._name(f"{developer_id}\n{user_key}")  # an account's id holds no line break

    def in_audit(self, user_key: str) -> str:
        """Return the pseudonym of a user for the audit log."""
        return self._name(user_key)

    def _name(self, message: str) -> str:
        digest = hmac.new(self._key, message.encode(), hashlib.sha256).hexdigest()
        return "user_" + digest[:PSEUDONYM_DIGITS]
