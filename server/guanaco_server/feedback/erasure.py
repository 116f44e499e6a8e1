"""Erases a user in one transaction, after which no table holds the user's id, name or words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import Forbidden
from guanaco.feedback import Erasure, ErasureRequest
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.chat.conversations.records import RateableConversation, user_key
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database
from guanaco_server.feedback.copies import Pseudonyms
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.submissions.service import SubmissionService

ACTION = "erase user"
BATCH = 1_000  # ids in one statement


@dataclass(frozen=True)
class ErasedUser:
    """A user of some accounts, and a batch of their conversations and ratings."""

    user_id: str
    account_ids: frozenset[str]
    conversation_ids: tuple[str, ...]
    feedback_ids: tuple[str, ...]


Eraser = Callable[[AsyncSession, ErasedUser], Awaitable[None]]
"""Erases what another room knows of a user, within the same transaction and before the rows that it may refer to.

It is called at least once for a user, and once for each batch of a user with many conversations.
"""


OnDeleted = Callable[[AsyncSession, RateableConversation], Awaitable[None]]


class ErasureService:
    def __init__(
        self,
        database: Database,
        accounts: AccountService,
        submissions: SubmissionService,
        conversations: ConversationService,
        feedback: FeedbackService,
        pseudonyms: Pseudonyms,
        audit: AuditLog,
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._submissions = submissions
        self._conversations = conversations
        self._feedback = feedback
        self._pseudonyms = pseudonyms
        self._audit = audit
        self._erasers: list[Eraser] = []
        self._deletion_listeners: list[OnDeleted] = []

    def on_erase(self, eraser: Eraser) -> None:
        """Have another room erase what it knows of a user."""
        self._erasers.append(eraser)

    async def erase(self, account: Account, request: ErasureRequest) -> Erasure:
        """Erase a user. Repeating it is safe.

        Raises:
            AccountNotFound: There is no such account.
            AmbiguousUser: Users of several backends have that id.
        """
        messages = ratings = 0
        known_as: dict[str, str] = {}
        async with self._database.write() as session:
            owner = await self._accounts.require_named(session, request.account)
            owners = await self._conversations.lock_of_user(session, request.user_id, owner)
            account_ids = frozenset(owners.values()) | ({owner} if owner else frozenset())
            named = user_key(next(iter(account_ids), ""), request.user_id)
            pseudonym = self._pseudonyms.in_audit(
                named
            )  # of one account, or AmbiguousUser was raised
            for batch in _batches(tuple(owners)):
                feedback_ids = await self._feedback.lock_of_conversations(session, batch)
                known_as |= await self._known_as(session, feedback_ids, named)
                erased = ErasedUser(request.user_id, account_ids, batch, feedback_ids)
                for eraser in self._erasers:
                    await eraser(session, erased)
                await self._feedback.erase(session, feedback_ids, batch)
                messages += await self._conversations.erase(session, batch)
                await self._audit.forget(session, (*batch, *feedback_ids), pseudonym)
                ratings += len(feedback_ids)
            await self._audit.note(session, account, ACTION, pseudonym)
        await self._database.empty_log()
        return Erasure(
            user=pseudonym,
            known_as=known_as,
            conversations=len(owners),
            messages=messages,
            ratings=ratings,
        )

    def on_deleted(self, listener: OnDeleted) -> None:
        """Have it called, within the transaction and before the rows go, for each single conversation that is deleted."""
        self._deletion_listeners.append(listener)

    async def erase_own(self, account: Account, request: ErasureRequest) -> Erasure:
        """Erase one of the account's own users. Only an admin names another account; Forbidden for anybody else."""
        if account.role is not Role.ADMIN:
            if request.account not in (None, account.name):
                raise Forbidden("A backend erases its own users only.", hint="Leave out `account`.")
            request = request.model_copy(update={"account": account.name})
        return await self.erase(account, request)

    async def delete_conversation(self, account: Account, conversation_id: str) -> None:
        """Delete one of the account's own conversations for good, with its messages and its rating."""
        async with self._database.write() as session:
            found = await self._conversations.own_of(session, account, conversation_id)
            feedback_ids = await self._feedback.lock_of_conversations(session, [found.id])
            for listener in self._deletion_listeners:
                await listener(session, found)
            await self._feedback.erase(session, feedback_ids, [found.id])
            await self._conversations.erase(session, [found.id])
        await self._database.empty_log()

    async def _known_as(
        self, session: AsyncSession, feedback_ids: Sequence[str], named: str
    ) -> dict[str, str]:
        """Return the user's pseudonym for each developer of a rated submission, by the developer's name."""
        rated = await self._feedback.rated_submissions(session, feedback_ids)
        developers = await self._submissions.developers(session, rated)
        return {
            name: self._pseudonyms.seen_by(developer_id, named)
            for developer_id, name in developers.values()
        }


def _batches(ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Split ids into batches; one empty batch if there are none."""
    return [tuple(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)] or [()]
