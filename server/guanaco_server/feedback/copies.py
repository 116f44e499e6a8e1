"""Makes the anonymized copies that developers read.

    load   one transaction: ratings without a copy of this version, with their conversations
    make   no session open, in a thread: pseudonyms and tags
    apply  one transaction: claim the ratings, write the copies; of two that made the same, one loses

The queue is the ratings themselves, so that nothing is lost when a process dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Message
from guanaco.feedback import Feedback
from guanaco.submissions import GenerationParams
from guanaco_server.anonymization import anonymizer as anonymization
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries
from guanaco_server.feedback.conditions import searchable
from guanaco_server.feedback.pseudonyms import Pseudonyms
from guanaco_server.feedback.queries import NewCopy
from guanaco_server.feedback.tables import FeedbackCopyRow, FeedbackRow
from guanaco_server.submissions.service import SubmissionService

logger = logging.getLogger(__name__)

WITHHELD = "<WITHHELD>"
BATCH = 200  # ratings, of which some 330 to 535 a second are loaded, anonymized and stored

CONTENT_VERSION = 1  # 1: copies name the variant of an experiment
VERSION = anonymization.VERSION + CONTENT_VERSION
"""The version of a copy. Raise CONTENT_VERSION when a copy holds something new: every older copy is then made again."""

Variants = Callable[[AsyncSession, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Find the experiment's variant of each conversation; conversations in no experiment are absent."""


@dataclass(frozen=True)
class Raw:
    """A rating with what belongs to it."""

    row: FeedbackRow
    user_name: str
    first_message: str
    params: GenerationParams | None
    messages: Sequence[Message]
    variant: str | None


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
        """Copy a batch of the ratings that wait; how many there were."""
        return await self._make(self._version, None, limit)

    async def make_missing(self, submission_id: str) -> None:
        """Copy now what a submission has without a copy, up to a batch: whoever reads need not wait for the loop."""
        await self._make(1, submission_id, BATCH)

    async def waiting_since(self) -> datetime | None:
        """When the oldest rating without a copy was given."""
        async with self._database.read() as session:
            return await queries.oldest_without_copy(session)

    async def _make(self, below: int, submission_id: str | None, limit: int) -> int:
        raw = await self._load(below, submission_id, limit)
        if raw:
            await self._apply(await asyncio.to_thread(self._copies, raw))
        return len(raw)

    async def _load(self, below: int, submission_id: str | None, limit: int) -> list[Raw]:
        async with self._database.read() as session:
            rows = await queries.without_copy(session, below, submission_id, limit)
            if not rows:
                return []
            ids = [row.conversation_id for row in rows]
            messages = await self._conversations.messages(session, ids)
            names = await self._conversations.user_names(session, ids)
            beginnings = await self._conversations.first_messages(session, ids)
            params = await self._submissions.params(session, {row.submission_id for row in rows})
            variants = await self._variants(session, ids)
        return [
            Raw(
                row,
                names.get(row.conversation_id, ""),
                beginnings.get(row.conversation_id, ""),
                params.get(row.submission_id),
                messages.get(row.conversation_id, ()),
                variants.get(row.conversation_id),
            )
            for row in rows
        ]

    async def _apply(self, copies: Mapping[str, NewCopy]) -> None:
        async with self._database.write() as session:
            claimed = await queries.claim_copies(session, list(copies), self._version)
            if claimed:
                await in_commit_order(session, FeedbackCopyRow.__tablename__)
                await queries.write_copies(
                    session, [copy for key, copy in copies.items() if key in claimed]
                )

    def _copies(self, raw: Sequence[Raw]) -> dict[str, NewCopy]:
        return {one.row.id: self._copy_or_withhold(one) for one in raw}

    def _copy_or_withhold(self, raw: Raw) -> NewCopy:
        """A text on which the anonymizer breaks must neither be shown nor hold up all others."""
        try:
            return self._copy(raw, lambda text: self._anonymizer.text(text, raw.user_name))
        except Exception as error:  # noqa: BLE001 - a stranger's text, through other people's parsers
            logger.error("the texts of %s are withheld: %s", raw.row.id, type(error).__name__)
            return self._copy(raw, lambda _text: WITHHELD)

    def _copy(self, raw: Raw, shown: Callable[[str], str]) -> NewCopy:
        row = raw.row

        messages = [m.model_copy(update={"content": shown(m.content)}) for m in raw.messages]
        feedback = Feedback(
            id=row.id,
            submission_id=row.submission_id,
            conversation_id=row.conversation_id,
            competition=row.competition,
            variant=raw.variant,
            user=self._pseudonyms.of(user_key(row.account_id, row.user_id)),
            bot_name=shown(row.bot_name),
            first_message=shown(raw.first_message),
            thumbs_up=row.thumbs_up,
            text=shown(row.text),
            at=row.created_at,
            length=sum(not message.is_deleted for message in messages),
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
        )
