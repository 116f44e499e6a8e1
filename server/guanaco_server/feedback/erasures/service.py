"""Erases a user in one transaction, after which no table holds the user's id, name or words.

    look whom it concerns ─▶ add an entry to the ledger (ledger.py) ─▶ erase, and note the entry (one transaction)

So no erasure is acknowledged that the ledger does not know. A database that was restored from a backup lacks the notes of
entries that came later; ``replay`` carries them out again before the platform serves anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import Forbidden, InvalidSettings
from guanaco.feedback import Erasure, ErasureRequest
from guanaco_server.accounts.audit import Actor, AuditLog
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import RateableConversation, user_key
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries
from guanaco_server.feedback.copies import Pseudonyms
from guanaco_server.feedback.erasures.ledger import (
    ErasureEntry,
    ErasureLedger,
    UserHashes,
    in_force,
    new_id,
)
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

ACTION, ACTION_REPEATED = "erase user", "erase user again"
BATCH = 1_000  # ids in one statement


@dataclass(frozen=True)
class ErasedUser:
    """A user of some accounts, and a batch of their conversations and ratings."""

    user_id: str
    account_ids: frozenset[str]
    conversation_ids: tuple[str, ...]
    feedback_ids: tuple[str, ...]


@dataclass(frozen=True)
class _Platform:
    """The actor that repeats erasures, in the audit log."""

    name: str = "(platform)"


logger = logging.getLogger(__name__)

Eraser = Callable[[AsyncSession, ErasedUser], Awaitable[None]]
"""Erases what another room knows of a user, within the same transaction and before the rows that it may refer to.

It is called at least once for a user, and once for each batch of a user with many conversations.
"""


OnDeleted = Callable[[AsyncSession, RateableConversation], Awaitable[None]]


class ErasureService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        submissions: SubmissionService,
        conversations: ConversationService,
        feedback: FeedbackService,
        pseudonyms: Pseudonyms,
        audit: AuditLog,
        ledger: ErasureLedger,
        hashes: UserHashes,
        forget_user: Eraser,
        on_deleted: OnDeleted,
    ) -> None:
        """``forget_user`` is called within each transaction that erases a user, ``on_deleted``, before the rows go, for each single
        conversation that is deleted.
        """
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._submissions = submissions
        self._conversations = conversations
        self._feedback = feedback
        self._pseudonyms = pseudonyms
        self._audit = audit
        self._ledger = ledger
        self._hashes = hashes
        self._erasers: list[Eraser] = [forget_user]
        self._on_deleted = on_deleted

    def on_erase(self, eraser: Eraser) -> None:
        """Have another room erase what it knows of a user."""
        self._erasers.append(eraser)

    async def erase(self, account: Account, request: ErasureRequest) -> Erasure:
        """Erase a user. Repeating it is safe.

        Raises:
            AccountNotFound: There is no such account.
            AmbiguousUser: Users of several backends have that id.
        """
        async with self._database.read() as session:
            owner = await self._accounts.require_named(session, request.account)
            owners = await self._conversations.lock_of_user(session, request.user_id, owner)
        entry = None
        if owners:
            named = user_key(next(iter(owners.values())), request.user_id)
            entry = await self._enter(user=self._hashes.of(named), key=self._hashes.fingerprint)
        erased = await self._erase(account, ACTION, request.user_id, owner, entry)
        await self._database.empty_log()
        return erased

    async def _enter(self, **what: str) -> ErasureEntry:
        entry = ErasureEntry(id=new_id(), at=self._clock.now(), **what)
        await self._ledger.add(entry)
        return entry

    async def _erase(
        self,
        by: Actor,
        action: str,
        user_id: str,
        owner: str | None,
        entry: ErasureEntry | None,
        until: datetime | None = None,
    ) -> Erasure:
        """Erase what a user began ``until`` then. ``owner`` is the id of the account whose user it is, if it is known."""

        async def erase(session: AsyncSession) -> Erasure:
            owners = await self._conversations.lock_of_user(session, user_id, owner, until)
            account_ids = frozenset(owners.values()) | ({owner} if owner else frozenset())
            named = user_key(next(iter(account_ids), ""), user_id)
            pseudonym = self._pseudonyms.in_audit(
                named
            )  # of one account, or AmbiguousUser was raised
            messages = ratings = 0
            known_as: dict[str, str] = {}
            for batch in _batches(tuple(owners)):
                feedback_ids = await self._feedback.lock_of_conversations(session, batch)
                known_as |= await self._known_as(session, feedback_ids, named)
                erased = ErasedUser(user_id, account_ids, batch, feedback_ids)
                for eraser in self._erasers:
                    await eraser(session, erased)
                await self._feedback.erase(session, feedback_ids, batch)
                messages += await self._conversations.erase(session, batch)
                await self._audit.forget(session, (*batch, *feedback_ids), pseudonym)
                ratings += len(feedback_ids)
            await self._audit.note(session, by, action, pseudonym)
            await queries.note_erasures(session, [entry] if entry else [])
            return Erasure(
                user=pseudonym,
                known_as=known_as,
                conversations=len(owners),
                messages=messages,
                ratings=ratings,
            )

        return await self._database.write_unit(erase)

    async def erase_own(self, account: Account, request: ErasureRequest) -> Erasure:
        """Erase one of the account's own users. Only an admin names another account; Forbidden for anybody else."""
        if account.role is not Role.ADMIN:
            if request.account not in (None, account.name):
                raise Forbidden("A backend erases its own users only.", hint="Leave out `account`.")
            request = request.model_copy(update={"account": account.name})
        return await self.erase(account, request)

    async def delete_conversation(self, account: Account, conversation_id: str) -> None:
        """Delete one of the account's own conversations for good, with its messages and its rating."""
        async with self._database.read() as session:
            await self._conversations.own_of(session, account, conversation_id)
        entry = await self._enter(conversation=conversation_id)

        async def delete(session: AsyncSession) -> None:
            found = await self._conversations.own_of(session, account, conversation_id)
            await self._delete(session, found)
            await queries.note_erasures(session, [entry])

        await self._database.write_unit(delete)
        await self._database.empty_log()

    async def _delete(self, session: AsyncSession, found: RateableConversation) -> None:
        feedback_ids = await self._feedback.lock_of_conversations(session, [found.id])
        await self._on_deleted(session, found)
        await self._feedback.erase(session, feedback_ids, [found.id])
        await self._conversations.erase(session, [found.id])

    async def replay(self) -> int:
        """Carry out the ledger's erasures that this database does not know, and return how many there were.

        A database that was restored to a moment before them does not. Repeating it is safe, also in several processes.

        Raises:
            InvalidSettings: The ledger was written under another pseudonym key.
            StoreUnreachable: The ledger cannot be read.
        """
        listed = await self._ledger.ids()
        async with self._database.read() as session:
            known = await queries.noted_erasures(session)
        missing = in_force(await self._ledger.read(listed - known))
        if not missing:
            return 0
        await self._erase_again([entry for entry in missing if entry.user is not None])
        for entry in missing:
            if entry.conversation is not None:
                await self._delete_again(entry.conversation)
        await self._database.write_unit(lambda session: queries.note_erasures(session, missing))
        await self._database.empty_log()
        logger.warning("%d erasures that the database did not know were carried out", len(missing))
        return len(missing)

    async def count_since(self, since: datetime) -> int:
        """Count the erasures since then, which take ratings away even from a frozen season."""
        async with self._database.read() as session:
            return await queries.count_erasures(session, since)

    async def _erase_again(self, entries: Sequence[ErasureEntry]) -> None:
        if not entries:
            return
        if any(entry.key != self._hashes.fingerprint for entry in entries):
            raise InvalidSettings(
                f"{len(entries)} erasures cannot be repeated in this database: the pseudonym key is another one than theirs.",
                hint="Bring the key back that the platform had, in GUANACO_PSEUDONYM_KEY or pseudonym.key.",
            )
        wanted = {entry.user: entry.at for entry in entries}  # the newest of each: they are sorted
        async with self._database.read() as session:
            users = await chat_records.users_until(session, max(wanted.values()))
        for account_id, user_id in users:
            at = wanted.get(self._hashes.of(user_key(account_id, user_id)))
            if at is not None:
                await self._erase(_Platform(), ACTION_REPEATED, user_id, account_id, None, at)

    async def _delete_again(self, conversation_id: str) -> None:
        async def delete(session: AsyncSession) -> None:
            found = (await chat_records.rateable(session, [conversation_id])).get(conversation_id)
            if found is not None:
                await self._delete(session, found)

        await self._database.write_unit(delete)

    async def _known_as(
        self, session: AsyncSession, feedback_ids: Sequence[str], named: str
    ) -> dict[str, str]:
        """Return the user's pseudonym for each developer of a rated submission, by the developer's name."""
        rated = await self._feedback.rated_submissions(session, feedback_ids)
        developers = await self._submissions.catalog.developers(session, rated)
        return {
            name: self._pseudonyms.seen_by(developer_id, named)
            for developer_id, name in developers.values()
        }


def _batches(ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Split ids into batches; one empty batch if there are none."""
    return [tuple(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)] or [()]
