"""A turn of a conversation: claim, generate, record.

    claim    one transaction: take the turn's lease, store the user's message, load the history
    generate no session open: render, stream
    record   one transaction: store the reply, give the lease back; only then comes the final event

A turn that fails gives its lease back and leaves the user's message unanswered; sending the same message again
answers that one, and so does regenerate. A process that dies leaves a lease that runs out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Bot, MessageRequest, Reply, Sender, Token, Turn
from guanaco.errors import ConversationBusy, NothingToRegenerate
from guanaco_server.accounts.service import Account
from guanaco_server.chat import queries
from guanaco_server.chat.conversations import require_own
from guanaco_server.chat.generation import Generated, ReplyGenerator
from guanaco_server.chat.tables import MessageRow
from guanaco_server.clock import Clock
from guanaco_server.database.database import Database
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.experiments.variants import apply_variant
from guanaco_server.routing.policy import LiveSubmission
from guanaco_server.routing.service import RoutingService

LEASE_MARGIN_S = 30  # over a reply's longest time, for recording it

ReplyEvents = AsyncGenerator[Token | Reply, None]


@dataclass(frozen=True)
class ClaimedTurn:
    """``superseded`` are the replies that this one replaces once it is stored; ``variant`` is of an experiment."""

    conversation_id: str
    submission_id: str
    variant: tuple[str, str] | None
    token: str
    bot: Bot
    user_name: str
    turns: tuple[Turn, ...]
    superseded: tuple[str, ...]


class ReplyService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        routing: RoutingService,
        experiments: RunningExperiments,
        generator: ReplyGenerator,
        reply_timeout_s: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._routing = routing
        self._experiments = experiments
        self._generator = generator
        self._lease = timedelta(seconds=reply_timeout_s + LEASE_MARGIN_S)
        self._releases: set[asyncio.Task[None]] = set()

    async def send(
        self, account: Account, conversation_id: str, request: MessageRequest
    ) -> ReplyEvents:
        """The user's message is stored when this returns; the events are the reply to it."""
        async with self._database.write() as session:
            turn = await self._claim(session, account, conversation_id, request.content)
        return self._reply(turn)

    async def regenerate(self, account: Account, conversation_id: str) -> ReplyEvents:
        """Answer the last user message anew; the old reply stays until the new one is stored, then marked deleted."""
        async with self._database.write() as session:
            turn = await self._claim(session, account, conversation_id, None)
        return self._reply(turn)

    async def _claim(
        self, session: AsyncSession, account: Account, conversation_id: str, content: str | None
    ) -> ClaimedTurn:
        row = await require_own(session, account, conversation_id)
        token, now = uuid.uuid4().hex, self._clock.now()
        if not await queries.take_turn(session, row.id, token, now, now + self._lease):
            raise ConversationBusy
        rows = await queries.messages_of(session, [row.id])
        history = [message for message in rows if not message.is_deleted]
        if content is not None and not _is_unanswered(history, content):
            history.append(await self._add(session, row.id, Sender.USER, content))
        last = _last_user_message(history)
        return ClaimedTurn(
            conversation_id=row.id,
            submission_id=row.submission_id,
            variant=(row.experiment, row.variant) if row.experiment and row.variant else None,
            token=token,
            bot=row.bot,
            user_name=row.user_name,
            turns=tuple(Turn(sender=m.sender, content=m.content) for m in history[: last + 1]),
            superseded=tuple(message.id for message in history[last + 1 :]),
        )

    async def _reply(self, turn: ClaimedTurn) -> ReplyEvents:
        is_recorded = False
        try:
            live = await self._target(turn)
            pieces = self._generator.generate(live, turn.bot, turn.user_name, turn.turns)
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, Generated):
                        reply = await self._record(turn, piece)
                        is_recorded = True
                        yield reply
                    else:
                        yield Token(text=piece)
        finally:
            if not is_recorded:
                await self._release(turn)

    async def _target(self, turn: ClaimedTurn) -> LiveSubmission:
        live = await self._routing.target(turn.submission_id)
        if turn.variant is None:
            return live
        overrides = await self._experiments.overrides(*turn.variant)
        return replace(live, serving=apply_variant(live.serving, overrides))

    async def _record(self, turn: ClaimedTurn, generated: Generated) -> Reply:
        async with self._database.write() as session:
            if not await queries.release_turn(session, turn.conversation_id, turn.token):
                raise ConversationBusy
            message = await self._add(
                session, turn.conversation_id, Sender.BOT, generated.content, generated
            )
            await queries.mark_deleted(session, turn.superseded)
        return Reply(
            message_id=message.id,
            content=generated.content,
            finish_reason=generated.finish_reason,
            usage=generated.usage,
            timings=generated.timings,
        )

    async def _release(self, turn: ClaimedTurn) -> None:
        """Also when the client has gone and this very task is being cancelled."""
        task = asyncio.create_task(self._release_now(turn))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        await asyncio.shield(task)

    async def _release_now(self, turn: ClaimedTurn) -> None:
        async with self._database.write() as session:
            await queries.release_turn(session, turn.conversation_id, turn.token)

    async def _add(
        self,
        session: AsyncSession,
        conversation_id: str,
        sender: Sender,
        content: str,
        generated: Generated | None = None,
    ) -> MessageRow:
        row = MessageRow(
            id=f"msg_{uuid.uuid4().hex}",
            conversation_id=conversation_id,
            position=await queries.next_position(session, conversation_id),
            sender=sender,
            content=content,
            created_at=self._clock.now(),
            is_deleted=False,
        )
        if generated is not None:
            row.finish_reason = generated.finish_reason
            row.prompt_tokens = generated.usage.prompt_tokens
            row.completion_tokens = generated.usage.completion_tokens
            row.ttft_ms = generated.timings.ttft_ms
            row.total_ms = generated.timings.total_ms
        session.add(row)
        return row


def _is_unanswered(history: list[MessageRow], content: str) -> bool:
    """A client that repeats a failed request repeats its last message."""
    return bool(history) and history[-1].sender is Sender.USER and history[-1].content == content


def _last_user_message(history: list[MessageRow]) -> int:
    for index in range(len(history) - 1, -1, -1):
        if history[index].sender is Sender.USER:
            return index
    raise NothingToRegenerate
