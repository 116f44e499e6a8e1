"""Opens, reads and erases conversations. A user must have consented, and a conversation keeps its submission."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.chat import (
    Bot,
    Conversation,
    ConversationOpened,
    ConversationRequest,
    Message,
    Turn,
)
from guanaco.competitions import CHOSEN, AssignmentReplay
from guanaco.errors import (
    AmbiguousUser,
    ConsentRequired,
    ConversationNotFound,
    ExternalIdTaken,
    Forbidden,
    NoModelAvailable,
    PersonaTooLong,
    RatingSettled,
)
from guanaco.experiments import Variant
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.characters.service import CharacterService
from guanaco_server.chat import queries
from guanaco_server.chat.conversations import records
from guanaco_server.chat.conversations.assignments import assignment_of
from guanaco_server.chat.conversations.erasure_watch import ErasureWatch, OnErased
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.conversations.persona_fit import PersonaFit
from guanaco_server.chat.conversations.reading import (
    new_history,
    read_conversation,
    read_messages,
    read_opened,
)
from guanaco_server.chat.memory.carrying import are_sources_there, carried_into, erase_carried
from guanaco_server.chat.personas.service import PersonaShortener, Shortened
from guanaco_server.chat.tables import ConversationRow, ErasedConversationRow, MessageRow
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.database import Database
from guanaco_server.experiments.running import Exposure, RunningExperiments
from guanaco_server.experiments.variants import apply_variant
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.partitions.ids import new_conversation_id
from guanaco_server.partitions.service import Periods
from guanaco_server.prompts.history.lore import require_usable_book
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.service import Assigned, RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.catalog import ServingSubmission
from guanaco_server.submissions.service import SubmissionService

READ = "read conversation"
REPEATABLE_FOR = timedelta(days=30)  # an assignment can be made again
ERASED_KEPT = timedelta(days=1)  # a process that is behind by more has been started again


Eraser = Callable[[AsyncSession, Sequence[str]], Awaitable[None]]


class ConversationService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        routing: RoutingService,
        competitions: CompetitionService,
        periods: Periods,
        audit: AuditLog,
        experiments: RunningExperiments,
        prompts: PromptService,
        submissions: SubmissionService,
        characters: CharacterService,
        personas: PersonaShortener,
        on_erasing: Eraser,
    ) -> None:
        """``on_erasing`` is called within each transaction that erases conversations, with their ids."""
        self._personas = personas
        self._characters = characters
        self._submissions = submissions
        self._database = database
        self._clock = clock
        self._routing = routing
        self._competitions = competitions
        self._periods = periods
        self._audit = audit
        self._experiments = experiments
        self._prompts = prompts
        self.erasure_watch = ErasureWatch(database)
        self._on_opened: list[Callable[[History], None]] = []
        self._on_erasing = on_erasing

    def on_erased(self, listener: OnErased) -> None:
        """Have it called, in each process, with the ids of conversations that were erased anywhere."""
        self.erasure_watch.on_erased(listener)

    def on_opened(self, listener: Callable[[History], None]) -> None:
        """Have it called with what is known of each conversation that this process opens."""
        self._on_opened.append(listener)

    async def open(
        self, account: Account, request: ConversationRequest, *, may_shorten: bool = True
    ) -> ConversationOpened:
        """Open a conversation. Nothing is stored of a user who has not consented. A persona that no model has room for is shortened, or refused unless it may be."""
        if not request.consent:
            raise ConsentRequired
        if known := await self._known(account, request):
            return known
        chosen = await self._chosen(account, request.model)
        if chosen is None:
            await self._competitions.require_running(request.competition)
        competition = request.competition if chosen is None else CHOSEN
        conversation_id = new_conversation_id(await self._periods.current(competition))
        bot, character = await self._bot(account, request, conversation_id)
        row = ConversationRow(
            id=conversation_id,
            account_id=account.id,
            user_id=request.user_id,
            user_name=request.user_name,
            competition=competition,
            bot=bot,
            character=character,
            carried=await self._carried(account, request, character),
            message_count=len(request.history),
            external_id=request.external_id,
            app_metadata=request.metadata,
        )
        fit = PersonaFit(self._prompts, bot, request.user_name)
        shorter: Shortened | None = None
        exposure = await self._exposure(account, request, fit) if chosen is None else None
        try:
            assigned = await self._submission(account, row, chosen, exposure, fit)
        except PersonaTooLong:
            if not may_shorten or not (shorter := await self._personas.shorter(row, fit)):
                raise
            row.bot = shorter.bot
            again = PersonaFit(self._prompts, row.bot, request.user_name)
            assigned = await self._submission(account, row, chosen, exposure, again)
        try:
            opened = await self._store(row, assigned, exposure, request.history, shorter)
        except IntegrityError:
            if known := await self._known(account, request):  # another has just opened it
                return known
            raise
        if shorter is not None:
            self._personas.improve(shorter)
        if not request.history:
            for listener in self._on_opened:
                listener(new_history(row))
        return opened

    async def _chosen(self, account: Account, named: str | None) -> str | None:
        """Return the id of the submission that the app names, which its key must allow; None where the platform is to choose."""
        if named is None and account.role is not Role.DEVELOPER:
            return None
        if named is None:
            raise Forbidden(
                "A developer's key opens conversations with its own submissions only.",
                hint="Name one as `model`; a backend's key is assigned one.",
            )
        if account.role is Role.BACKEND and not account.may_choose_models:
            raise Forbidden(
                "This key may not choose a model.",
                hint="Leave `model` out, or ask an admin for a key with `guanaco keys create --may-choose-models`.",
            )
        return (await self._submissions.require_choosable(account, named)).id

    async def _bot(
        self, account: Account, request: ConversationRequest, seed: str
    ) -> tuple[Bot, str | None]:
        """Return the bot that is sent, as it is; or the named character's, with the version that it is made of."""
        if request.character is None:
            assert request.bot is not None  # the request has one of the two
            await require_usable_book(request.bot, account.id)
            return request.bot, None
        cast = await self._characters.bot(
            account,
            request.character,
            user_name=request.user_name,
            seed=seed,
            greeting=request.greeting or 0,
        )
        return cast.bot, cast.version

    async def _carried(
        self, account: Account, request: ConversationRequest, character: str | None
    ) -> dict[str, Any] | None:
        """Return what the character remembers of the user's last conversation with it, where the app wants that."""
        if not request.remember or character is None:
            return None
        return await carried_into(self._database, account.id, request.user_id, character)

    async def _known(
        self, account: Account, request: ConversationRequest
    ) -> ConversationOpened | None:
        """Return the account's conversation that has the app's own id; ExternalIdTaken when it is another user's."""
        if request.external_id is None:
            return None
        async with self._database.read() as session:
            row = await queries.by_external_id(session, account.id, request.external_id)
        if row is None:
            return None
        if row.user_id != request.user_id:
            raise ExternalIdTaken(request.external_id)
        return read_opened(row)

    async def seen(self, account: Account, competition_id: str, user_id: str) -> Sequence[str]:
        """Return the submissions that a user of this account has had, least recently had first."""
        async with self._database.read() as session:
            return await queries.seen_submissions(session, account.id, user_id, competition_id)

    async def read(self, account: Account, conversation_id: str) -> Conversation:
        """Read it as it was written; an admin's reading of another's is noted in the audit log before it is shown."""
        async with self._database.read() as session:
            row = await require_own(session, account, conversation_id)
            messages = await queries.messages_of(session, [conversation_id])
        if row.account_id != account.id:
            await self._note_reading(account, conversation_id)
        return read_conversation(row, messages)

    async def of_user(self, account: Account, conversation_id: str, user_id: str) -> Conversation:
        """Read it as it was written; ConversationNotFound unless it is this account's, with this user."""
        async with self._database.read() as session:
            row = await queries.by_id(session, conversation_id)
            if row is None or (row.account_id, row.user_id) != (account.id, user_id):
                raise ConversationNotFound(conversation_id)
            return read_conversation(row, await queries.messages_of(session, [conversation_id]))

    async def assignment(self, conversation_id: str) -> AssignmentReplay:
        """Return how it got its submission, and what the same choice comes to now."""
        return await assignment_of(self._database, self._routing, conversation_id)

    async def messages(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> dict[str, list[Message]]:
        """Read the messages of each conversation, within the caller's transaction."""
        rows = await queries.messages_of(session, conversation_ids)
        return {
            conversation_id: read_messages(list(messages))
            for conversation_id, messages in groupby(rows, lambda row: row.conversation_id)
        }

    async def user_names(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> dict[str, str]:
        """Read the name of each conversation's user, within the caller's transaction."""
        return await queries.user_names(session, conversation_ids)

    async def first_messages(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> dict[str, str]:
        """Read the first message of each conversation's bot, within the caller's transaction; empty where the bot waited."""
        return await queries.first_messages(session, conversation_ids)

    async def lock_of_user(
        self,
        session: AsyncSession,
        user_id: str,
        account_id: str | None,
        until: datetime | None = None,
    ) -> dict[str, str]:
        """Lock the user's conversations until the caller's transaction ends, and return each with its account.

        ``until``: only those that began until then.
        AmbiguousUser when no account is named and several have a user of that id.
        """
        owners = await queries.lock_of_user(session, user_id, account_id, until)
        if len(set(owners.values())) > 1:
            raise AmbiguousUser
        return owners

    async def erase(self, session: AsyncSession, conversation_ids: Sequence[str]) -> int:
        """Erase conversations within the caller's transaction; every process will hear of it. Return how many messages they had."""
        if not conversation_ids:
            return 0
        await self._on_erasing(session, conversation_ids)
        await self._personas.erase_of_conversations(session, conversation_ids)
        await erase_carried(session, conversation_ids)
        now = self._clock.now()
        await in_commit_order(session, ErasedConversationRow.__tablename__)
        await queries.note_erased(session, conversation_ids, now, now - ERASED_KEPT)
        return await queries.delete_conversations(session, conversation_ids)

    async def rateable(
        self, session: AsyncSession, conversation_ids: Collection[str]
    ) -> dict[str, records.RateableConversation]:
        """Read those of these conversations that exist. Until the caller's transaction ends, none is erased, nor its competition frozen."""
        found = await records.rateable(session, conversation_ids)
        await self._competitions.hold_open(session, {one.competition for one in found.values()})
        return found

    async def own_of(
        self, session: AsyncSession, account: Account, conversation_id: str
    ) -> records.RateableConversation:
        """Lock the account's own conversation until the caller's transaction ends, and return it.

        ConversationNotFound for another's, also when an admin asks.
        """
        row = await queries.locked(session, conversation_id)
        if row is None or row.account_id != account.id:
            raise ConversationNotFound(conversation_id)
        return (await records.rateable(session, [conversation_id]))[conversation_id]

    async def require_unfrozen(self, session: AsyncSession, competition_id: str) -> None:
        """Raise RatingSettled if the competition's ranking is final. Call it after ``rateable``, in the same transaction."""
        if await self._competitions.is_frozen(session, competition_id):
            raise RatingSettled(
                f"The competition {competition_id} is over and its ranking is final, so its ratings stay as they are."
            )

    async def measure_again(self, session: AsyncSession, conversation_ids: Sequence[str]) -> None:
        """Have the leaderboard measure these conversations again, within the caller's transaction."""
        await records.ask_measurement(session, conversation_ids)

    async def _exposure(
        self, account: Account, request: ConversationRequest, fit: PersonaFit
    ) -> Exposure | None:
        """Return the experiment that the conversation takes part in: one whose models the persona fits, all of them."""
        exposure = await self._experiments.enter(account.id, request.user_id, request.competition)
        if exposure is None:
            return None
        for variant in self._experiments.variants(exposure.experiment):
            if variant.model is not None:
                serving = self._routing.serving(variant.model)
                if serving is None or not await fit.fits(apply_variant(serving, variant)):
                    return None
        return exposure

    async def _submission(
        self,
        account: Account,
        row: ConversationRow,
        chosen: str | None,
        exposure: Exposure | None,
        fit: PersonaFit,
    ) -> Assigned:
        """Return the submission that the conversation talks to. PersonaTooLong where none has room for its bot."""
        try:
            if chosen is None:
                return await self._assign(account, row, exposure, fit)
            return await self._routing.assign_chosen(chosen, fit.fits)
        except NoModelAvailable:
            if fit.problem is not None:
                raise fit.problem from None
            raise

    async def _assign(
        self, account: Account, row: ConversationRow, exposure: Exposure | None, fit: PersonaFit
    ) -> Assigned:
        variant = exposure.variant if exposure is not None else Variant(name="none")
        if variant.model is not None:
            return self._routing.assign_to(variant.model)
        seen = await self.seen(account, row.competition, row.user_id)
        competition = await self._competitions.require_running(row.competition)

        async def fits(serving: ServingSubmission) -> bool:
            return await fit.fits(apply_variant(serving, variant))

        return await self._routing.assign(competition, seen, row.id, fits)

    async def _note_reading(self, account: Account, conversation_id: str) -> None:
        await self._database.write_unit(
            lambda session: self._audit.note(session, account, READ, conversation_id)
        )

    async def _store(
        self,
        row: ConversationRow,
        assigned: Assigned,
        exposure: Exposure | None,
        history: Sequence[Turn],
        shorter: Shortened | None,
    ) -> ConversationOpened:
        row.created_at = self._clock.now()
        row.submission_id, row.decision = assigned.submission_id, assigned.decision
        if exposure is not None:
            row.experiment, row.variant = exposure.experiment, exposure.variant.name

        async def store(session: AsyncSession) -> ConversationOpened:
            if row.carried is not None and not await are_sources_there(session, row.carried):
                row.carried = None  # erased while the submission was chosen
            if shorter is not None:
                await self._personas.keep(session, row, shorter)
            session.add(row)
            session.add_all(_imported(row, history))
            await self._routing.record(session, assigned, REPEATABLE_FOR)
            if exposure is not None:
                await session.flush()
                self._experiments.expose(session, exposure, row.id, row.created_at)
            opened = read_opened(row)
            await keep_answer(session, opened)
            return opened

        return await self._database.write_unit(store, is_urgent=True)


async def require_own(
    session: AsyncSession, account: Account, conversation_id: str
) -> ConversationRow:
    """Return the conversation; ConversationNotFound for another backend's."""
    row = await queries.by_id(session, conversation_id)
    if row is None or (account.role is not Role.ADMIN and row.account_id != account.id):
        raise ConversationNotFound(conversation_id)
    return row


def _imported(row: ConversationRow, history: Sequence[Turn]) -> list[MessageRow]:
    return [
        MessageRow(
            id=f"msg_{uuid.uuid4().hex}",
            conversation_id=row.id,
            position=position,
            sender=turn.sender,
            content=turn.content,
            created_at=row.created_at,
            is_deleted=False,
            is_imported=True,
        )
        for position, turn in enumerate(history, start=1)
    ]
