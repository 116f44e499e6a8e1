"""The chat page's beta users: anonymous, consenting, and never told which model speaks unless they chose it.

A visitor is a random number in a cookie, and conversations are the built-in account ``web-chat``'s. What the
services under it say when they fail may name a submission: ``blinding.py`` rewords it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.chat import Bot, ConversationRequest, Message, MessageRequest
from guanaco.competitions import OPEN
from guanaco.duels import BattleRecord, BattleRequest, DuelVoteRequest
from guanaco.errors import (
    AccountNotFound,
    Conflict,
    ConversationNotFound,
    Forbidden,
    NotFound,
    NotRated,
    TooManyAttempts,
    Unavailable,
)
from guanaco.feedback import ErasureRequest, FeedbackRequest, Rating
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.characters.service import CharacterService, File
from guanaco_server.chat.conversations.editing import ConversationEditor
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.replies import ReplyService
from guanaco_server.chat.gateway.stopping import Stop
from guanaco_server.database.database import Database
from guanaco_server.duels.battling import BattleService, BattleStop
from guanaco_server.duels.service import DuelService
from guanaco_server.feedback.erasures.service import ErasedUser, ErasureService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.catalog import SubmissionBrief
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.web import queries
from guanaco_server.web.access.viewer import hash_of, new_cookie
from guanaco_server.web.chat.blinding import blind, blinded
from guanaco_server.web.chat.bots import WebBot
from guanaco_server.web.chat.offered_characters import OfferedCharacters, require_picture
from guanaco_server.web.chat.ongoing import (
    FinishedReply,
    FollowedEvents,
    OngoingReplies,
    OngoingReply,
)
from guanaco_server.web.tables import VisitorChatRow, VisitorRow

ACCOUNT = "web-chat"
USER_PREFIX = "web-"
USER_CHARS = 32  # of the visitor's hash: 128 bits
HASH_PREFIX = re.compile(rf"[0-9a-f]{{{USER_CHARS}}}")
CHATS_SHOWN = 12
LOST_AFTER_S = 20.0  # a reply that another process writes is there by then, or its process has died
LOOK_S = 1.0
CHATS_AN_HOUR = 20  # of one visitor; a person reads the first reply before they open the next


@dataclass(frozen=True)
class Visitor:
    id: str

    @property
    def user_id(self) -> str:
        """The id by which the platform knows the beta user."""
        return USER_PREFIX + self.id[:USER_CHARS]


@dataclass(frozen=True)
class ChatSummary:
    conversation_id: str
    bot_name: str
    thumbs_up: bool | None
    at: datetime


@dataclass(frozen=True)
class Chat:
    """A conversation as its beta user may see it."""

    conversation_id: str
    bot: Bot
    messages: Sequence[Message]
    rating: Rating | None = None
    has_picture: bool = False
    swipes: Sequence[Message] = ()  # all replies to the last message, of which one is shown
    may_battle: bool = False
    battle: BattleRecord | None = None  # of the last message, until the user has voted on it
    chosen: str | None = (
        None  # the submission, where the user has chosen it; a chat is blind otherwise
    )

    @property
    def thumbs_up(self) -> bool | None:
        return self.rating.thumbs_up if self.rating is not None else None

    @property
    def has_reply(self) -> bool:
        return bool(self.messages) and self.messages[-1].sender == "bot"

    @property
    def last_user_message(self) -> Message | None:
        """The user's last message."""
        from_user = (message for message in reversed(self.messages) if message.sender == "user")
        return next(from_user, None)

    def beside(self, message: Message) -> tuple[int, str | None, str | None]:
        """Return the place of the reply that is shown among the swipes, from 1, and the replies before and after it."""
        ids = [swipe.id for swipe in self.swipes]
        place = ids.index(message.id)
        before = ids[place - 1] if place else None
        after = ids[place + 1] if place + 1 < len(ids) else None
        return place + 1, before, after


class BetaChat:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        conversations: ConversationService,
        editor: ConversationEditor,
        replies: ReplyService,
        feedback: FeedbackService,
        bots: Mapping[str, WebBot],
        characters: CharacterService,
        erasures: ErasureService,
        ongoing: OngoingReplies,
        battles: BattleService,
        duels: DuelService,
        submissions: SubmissionService,
        *,
        may_choose_models: bool,
    ) -> None:
        """``may_choose_models``: everybody may choose a model, and not only developers their own."""
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._conversations = conversations
        self._editor = editor
        self._replies = replies
        self._feedback = feedback
        self._erasures = erasures
        self._ongoing = ongoing
        self._battles = battles
        self._duels = duels
        self._submissions = submissions
        self.may_choose_models = may_choose_models
        self.offered = OfferedCharacters(self._account, bots, characters)

    async def consent(self) -> str:
        """Return a new visitor's cookie. Nothing is stored before this."""
        cookie = new_cookie()
        row = VisitorRow(id=hash_of(cookie), consented_at=self._clock.now())

        async def add(session: AsyncSession) -> None:
            session.add(row)

        await self._database.write_unit(add)
        return cookie

    async def visitor(self, cookie: str) -> Visitor | None:
        async with self._database.read() as session:
            row = await session.get(VisitorRow, hash_of(cookie))
        return Visitor(row.id) if row else None

    async def chats(self, visitor: Visitor) -> list[ChatSummary]:
        """List the newest chats of the visitor."""
        async with self._database.read() as session:
            rows = await queries.chats_of(session, visitor.id, CHATS_SHOWN)
        return [
            ChatSummary(row.conversation_id, row.bot_name, row.thumbs_up, row.created_at)
            for row in rows
        ]

    async def picture(self, visitor: Visitor, conversation_id: str) -> File:
        """Return the picture of the conversation's character, in the version with which it began."""
        await self._require_own(visitor, conversation_id)
        with blind():
            found = await self._conversations.read(await self._account(), conversation_id)
        return require_picture(
            await self.offered.picture(found.character) if found.character else None
        )

    async def require_model(self, account: Account | None, named: str) -> SubmissionBrief:
        """Return the model that somebody chooses to talk to: a developer's own, or any if everybody may choose.

        Raises:
            Forbidden: The chat page chooses for them.
            SubmissionNotFound: There is no such model, or it is another developer's.
            ModelNotLive: It takes no conversations.
        """
        if self.may_choose_models:
            return await self._submissions.require_choosable(await self._account(), named)
        if account is None or account.role not in (Role.DEVELOPER, Role.ADMIN):
            raise Forbidden(
                "The chat page chooses the model.",
                hint="Choose a character, or sign in to try a model of your own.",
            )
        return await self._submissions.require_choosable(account, named)

    async def open(self, visitor: Visitor, key: str, model: SubmissionBrief | None = None) -> str:
        """Open a conversation with a character, played by the chosen model or an assigned one. Return its id."""
        character = await self.offered.find(key)
        if character is None:
            raise NotFound("There is no such character.", hint="Choose one of those shown.")
        hour_ago = self._clock.now() - timedelta(hours=1)
        async with self._database.read() as session:
            if await queries.chat_count(session, visitor.id, hour_ago) >= CHATS_AN_HOUR:
                raise TooManyAttempts(600)
        bot = self.offered.bot(key)
        partner = {"bot": bot} if isinstance(bot, Bot) else {"character": bot.character}
        request = ConversationRequest(
            user_id=visitor.user_id, consent=True, model=model.id if model else None, **partner
        )
        with blind():
            account = replace(await self._account(), may_choose_models=model is not None)
            opened = await self._conversations.open(account, request)
        row = VisitorChatRow(
            conversation_id=opened.conversation_id,
            visitor_id=visitor.id,
            bot_name=character.name,
            thumbs_up=None,
            created_at=self._clock.now(),
        )

        async def add(session: AsyncSession) -> bool:
            is_known = await queries.lock_visitor(session, visitor.id) is not None
            if is_known:
                session.add(row)
            return is_known

        is_known = await self._database.write_unit(add)
        if not is_known:
            await self.forget(visitor)  # erased while the conversation was opened
            raise Forbidden("Your agreement was withdrawn.", hint="The chat page asks you again.")
        return opened.conversation_id

    async def read(self, visitor: Visitor, conversation_id: str) -> Chat:
        row = await self._require_own(visitor, conversation_id)
        with blind():
            found = await self._conversations.read(await self._account(), conversation_id)
        shown = [message for message in found.messages if not message.is_deleted]
        may_battle = self._battles.are_on(OPEN) and not found.is_chosen
        return Chat(
            conversation_id,
            found.bot,
            shown,
            await self._rating(conversation_id) if row.thumbs_up is not None else None,
            found.character is not None and await self.offered.has_picture(found.character),
            _swipes(found.messages),
            may_battle,
            await self._open_battle(conversation_id, shown) if may_battle else None,
            found.submission_id if found.is_chosen else None,
        )

    async def _rating(self, conversation_id: str) -> Rating | None:
        try:
            return await self._feedback.read(await self._account(), conversation_id)
        except NotRated:
            return None  # withdrawn over the API

    async def _open_battle(
        self, conversation_id: str, shown: Sequence[Message]
    ) -> BattleRecord | None:
        if not shown:
            return None
        with blind():
            found = await self._duels.list_battles(await self._account(), conversation_id)
        newest = found[-1] if found else None
        is_open = newest is not None and newest.outcome is None
        return newest if is_open and newest and newest.message_id == shown[-1].id else None

    async def battle(
        self, visitor: Visitor, conversation_id: str, request: BattleRequest, turn: str = ""
    ) -> OngoingReply:
        """Have two models answer the message, side by side; where only one can, it is an ordinary reply."""
        await self._require_own(visitor, conversation_id)
        stop = BattleStop()
        with blind():
            account = await self._account()
            events = await self._battles.battle(account, conversation_id, request, stop)
        return self._ongoing.begin_battle(conversation_id, blinded(events), stop, turn)

    async def vote(
        self, visitor: Visitor, conversation_id: str, battle_id: str, request: DuelVoteRequest
    ) -> None:
        """Say which of two replies is better; the conversation goes on with it."""
        await self._require_own(visitor, conversation_id)
        with blind():
            await self._duels.vote(await self._account(), conversation_id, battle_id, request)

    async def send(
        self, visitor: Visitor, conversation_id: str, request: MessageRequest, turn: str = ""
    ) -> OngoingReply:
        """``turn`` is the page's own name of the turn, by which it may stop the reply."""
        await self._require_own(visitor, conversation_id)
        stop = Stop()
        with blind():
            account = await self._account()
            events = await self._replies.send(account, conversation_id, request, stop=stop)
        return self._ongoing.begin(conversation_id, blinded(events), stop, turn)

    async def regenerate(
        self, visitor: Visitor, conversation_id: str, turn: str = ""
    ) -> OngoingReply:
        await self._require_own(visitor, conversation_id)
        stop = Stop()
        with blind():
            account = await self._account()
            events = await self._replies.regenerate(account, conversation_id, stop)
        return self._ongoing.begin(conversation_id, blinded(events), stop, turn)

    async def edit(
        self,
        visitor: Visitor,
        conversation_id: str,
        message_id: str,
        request: MessageRequest,
        turn: str = "",
    ) -> OngoingReply:
        """Say the user's last message in other words. It goes with its replies, which answered the words before."""
        last = (await self.read(visitor, conversation_id)).last_user_message
        if last is None or last.id != message_id:
            raise Conflict("That is no longer your last message.", hint="Load the page again.")
        with blind():
            await self._editor.delete_message(
                await self._account(), conversation_id, message_id, with_following=True
            )
        return await self.send(visitor, conversation_id, request, turn)

    async def stop(self, visitor: Visitor, conversation_id: str, turn: str) -> None:
        """Stop the reply of this turn, whichever process writes it. What is written of it stays."""
        await self._require_own(visitor, conversation_id)
        if not turn or self._ongoing.stop(conversation_id, turn):
            return

        async def stop(session: AsyncSession) -> None:
            row = await queries.chat_of(session, visitor.id, conversation_id)
            if row is not None:
                row.stopped_turn = turn

        await self._database.write_unit(stop)

    async def choose(self, visitor: Visitor, conversation_id: str, message_id: str) -> None:
        """Go on with another one of the replies to the last message."""
        await self._require_own(visitor, conversation_id)
        with blind():
            await self._editor.choose(await self._account(), conversation_id, message_id)

    async def judge(
        self, visitor: Visitor, conversation_id: str, message_id: str, thumbs_up: bool | None
    ) -> None:
        """Note what the user thinks of one reply; None takes it back."""
        await self._require_own(visitor, conversation_id)
        with blind():
            await self._editor.rate_message(
                await self._account(), conversation_id, message_id, thumbs_up
            )

    async def follow(self, visitor: Visitor, conversation_id: str, after: str) -> FollowedEvents:
        """Follow the reply that comes after the message ``after``: while it is written, or once it is recorded."""
        await self._require_own(visitor, conversation_id)
        ongoing = self._ongoing.of(conversation_id)
        return ongoing.follow() if ongoing else self._recorded(visitor, conversation_id, after)

    async def _recorded(self, visitor: Visitor, conversation_id: str, after: str) -> FollowedEvents:
        """Wait for a reply that another process may be writing."""
        until = time.monotonic() + LOST_AFTER_S
        while True:
            chat = await self.read(visitor, conversation_id)
            if chat.has_reply and chat.messages[-1].id != after:
                yield FinishedReply(chat.messages[-1].id, chat.messages[-1].content)
                return
            if time.monotonic() > until:
                raise Unavailable("The reply was lost.", hint="Ask for an answer again.")
            yield None
            await asyncio.sleep(LOOK_S)

    async def rate(self, visitor: Visitor, conversation_id: str, request: FeedbackRequest) -> None:
        """Rate the conversation, or change its rating while that is possible."""
        row = await self._require_own(visitor, conversation_id)
        with blind():
            is_new = row.thumbs_up is None or await self._rating(conversation_id) is None
            if is_new:
                await self._feedback.rate(await self._account(), conversation_id, request)
            else:
                await self._feedback.change(await self._account(), conversation_id, request)

        async def note(session: AsyncSession) -> None:
            shown = await queries.chat_of(session, visitor.id, conversation_id)
            if shown is not None:
                shown.thumbs_up = request.thumbs_up

        await self._database.write_unit(note)

    async def forget(self, visitor: Visitor) -> None:
        """Withdraw consent. May be repeated when it was cut short: the visitor goes last."""
        request = ErasureRequest(user_id=visitor.user_id, account=ACCOUNT)
        await self._erasures.erase(await self._account(), request)
        await self._database.write_unit(lambda session: queries.forget_visitor(session, visitor.id))

    async def forget_user(self, session: AsyncSession, erased: ErasedUser) -> None:
        """Delete the user's list of chats and their consent, within the transaction in which all else of the user is erased."""
        prefix = erased.user_id.removeprefix(USER_PREFIX)
        if prefix == erased.user_id or not HASH_PREFIX.fullmatch(prefix):
            return
        if erased.account_ids and not await self._is_one_of(session, erased.account_ids):
            return
        for visitor_id in await queries.visitors_between(
            session, prefix, prefix + "f" * USER_CHARS
        ):
            await queries.forget_visitor(session, visitor_id)

    async def _is_one_of(self, session: AsyncSession, account_ids: Collection[str]) -> bool:
        try:
            return await self._accounts.require_named(session, ACCOUNT) in account_ids
        except AccountNotFound:
            return False

    async def _account(self) -> Account:
        return await self._accounts.built_in(ACCOUNT, Role.BACKEND)

    async def _require_own(self, visitor: Visitor, conversation_id: str) -> VisitorChatRow:
        async with self._database.read() as session:
            row = await queries.chat_of(session, visitor.id, conversation_id)
        if row is None:
            raise ConversationNotFound(conversation_id)
        return row


def _swipes(messages: Sequence[Message]) -> list[Message]:
    """Return the replies after the last message that is none."""
    replies: list[Message] = []
    for message in reversed(messages):
        if message.sender != "bot" or message.is_imported:
            break
        replies.insert(0, message)
    return replies
