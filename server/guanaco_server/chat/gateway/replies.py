"""Answers a message in a conversation, and previews of a submission. A turn has three steps.

    claim     take the turn's lease; read the history from memory, or from the database if another process added to it
    generate  render the prompt and stream the reply, without a database connection
    record    store both messages and give the lease back; only then send the final event

A turn that fails gives its lease back and leaves the user's message unanswered. Sending the same message again, or
regenerate, answers it. The lease of a process that dies runs out.

A preview is a developer's try of their own submission: nothing is recorded, and the prompt is shown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel

from guanaco.accounts import Role
from guanaco.chat import MessageRequest, PreviewRequest, Reply, Sender
from guanaco.errors import (
    ConversationBusy,
    ConversationNotFound,
    DatabaseUnavailable,
    InvalidInput,
    NothingToContinue,
    NothingToRegenerate,
)
from guanaco.experiments import Overrides, ParamChanges
from guanaco.submissions import SubmissionKind
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.history import History, HistoryCache, HistoryReader
from guanaco_server.chat.gateway.asking import AskService
from guanaco_server.chat.gateway.generation import (
    Generated,
    GeneratedPieces,
    Pieces,
    ReplyGenerator,
)
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.chat.gateway.stopping import Stop
from guanaco_server.chat.gateway.turns.turn_log import (
    Continuation,
    EndedTurn,
    Lease,
    NewMessage,
    NewReply,
    TurnLog,
)
from guanaco_server.chat.memory.writer import SummaryWriter
from guanaco_server.deployments.versions import ConversationStart
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.experiments.variants import apply_variant
from guanaco_server.idempotency.keeping import answer_to, current_keeper
from guanaco_server.observability.tracing import span
from guanaco_server.prompts.history.lore import require_usable_book, with_lore
from guanaco_server.routing.service import LiveSubmission, RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

logger = logging.getLogger(__name__)

ReplyEvents = AsyncGenerator[Pieces | Reply, None]
Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(slots=True)
class ClaimedTurn:
    """``asked`` is the user's message unless it is stored already; ``asked_at`` is on the performance counter. ``begun`` is the reply that is to go on."""

    history: History
    lease: Lease
    asked: NewMessage | None
    asked_at: float
    begun: str = ""


class ReplyService:
    def __init__(
        self,
        reader: HistoryReader,
        clock: Clock,
        routing: RoutingService,
        experiments: RunningExperiments,
        generator: ReplyGenerator,
        turn_log: TurnLog,
        histories: HistoryCache,
        summaries: SummaryWriter,
        asking: AskService,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._routing = routing
        self._experiments = experiments
        self._generator = generator
        self._turn_log = turn_log
        self._histories = histories
        self._summaries = summaries
        self._asking = asking
        self._releases: set[asyncio.Task[None]] = set()

    async def send(
        self,
        account: Account,
        conversation_id: str,
        request: MessageRequest,
        changes: ParamChanges | None = None,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> ReplyEvents:
        """The turn is the caller's when this returns; the events are the reply to the message, with ``changes`` for this reply alone. ``stop`` ends a reply that has begun, which is recorded as far as it was written."""
        turn = await self.claim(account, conversation_id, request.content)
        return self.answer(turn, changes, seed, stop)

    async def regenerate(
        self, account: Account, conversation_id: str, stop: Stop | None = None
    ) -> ReplyEvents:
        """Answer the last user message again; the old reply stays until the new one is stored, then marked deleted."""
        return self.answer(await self.claim(account, conversation_id, None), stop=stop)

    async def continue_reply(self, account: Account, conversation_id: str) -> ReplyEvents:
        """Have the last reply go on where it ended; what is added is stored with it, in the same turn."""
        return self.answer(await self.claim(account, conversation_id, None, goes_on=True))

    def remember(self, history: History) -> None:
        """Keep the history of a conversation that was just opened, so that its first turn reads nothing."""
        self._histories.keep(history)

    def forget(self, conversation_ids: Sequence[str]) -> None:
        """Drop the histories of these conversations."""
        for conversation_id in conversation_ids:
            self._histories.forget(conversation_id)

    async def close(self) -> None:
        """Close the turn log, once no reply is being written."""
        await self._summaries.close()
        await self._turn_log.close()

    async def claim(
        self,
        account: Account,
        conversation_id: str,
        content: str | None,
        *,
        goes_on: bool = False,
    ) -> ClaimedTurn:
        """Take the turn, with the history that the reply continues. What is claimed must be recorded or released."""
        asked_at = time.perf_counter()
        if content is not None:
            _require_storable(content)
        history = await self._own_history(account, conversation_id)
        with span("claim the turn"):
            lease = await self._turn_log.claim(conversation_id)
        if lease is None:
            raise ConversationBusy
        try:
            if lease.message_count != history.message_count:
                history = await self._own_history(account, conversation_id)
            if goes_on:
                if not history.begun:
                    raise NothingToContinue
                return ClaimedTurn(history, lease, None, asked_at, history.begun)
            asked = await self._add_question(history, content)
            if not history.has_asked:
                raise NothingToRegenerate
            return ClaimedTurn(history, lease, asked, asked_at)
        except BaseException:
            await self._release(EndedTurn(lease, None, None))
            raise

    async def _add_question(self, history: History, content: str | None) -> NewMessage | None:
        """A client that repeats a failed request repeats its last message: that one is not stored twice."""
        if content is None:
            return None
        last = history.turns[-1] if history.turns else None
        if last is not None and last.sender is Sender.USER and last.content == content:
            return None
        triggered = (await history.ask(content)).lore
        return NewMessage(new_message_id(), content, self._clock.now(), lore=triggered)

    async def _own_history(self, account: Account, conversation_id: str) -> History:
        """Return the history: from memory if it is there, otherwise from the database."""
        known = self._histories.take(conversation_id)
        history = known or await self._read(conversation_id)
        if account.role is not Role.ADMIN and history.account_id != account.id:
            if known is not None:  # what was read just now may be older than what is kept by now
                self._histories.keep(known)
            raise ConversationNotFound(conversation_id)
        return history

    async def _read(self, conversation_id: str) -> History:
        with span("read the history"):
            return await self._reader.read(conversation_id)

    async def answer(
        self,
        turn: ClaimedTurn,
        changes: ParamChanges | None = None,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> ReplyEvents:
        """Return the events of the claimed turn's reply, by the conversation's own submission."""
        history = turn.history
        is_recorded = False
        try:
            live = await self.target(history, changes)
            await show_memory(turn, live)
            pieces = await self.generate(turn, live, seed, stop)
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, Generated):
                        if turn.begun:
                            reply = await self._record_continued(turn, piece)
                        else:
                            reply = await self.record(turn, piece, _unchanged)
                        is_recorded = True
                        self.consider_summary(turn, live)
                        yield reply
                    else:
                        yield piece
        finally:
            if not is_recorded:
                await self.release(turn)

    async def generate(
        self,
        turn: ClaimedTurn,
        live: LiveSubmission,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> GeneratedPieces:
        """Begin the turn's reply by a submission: the conversation's own, or another one beside it."""
        history = turn.history
        kept = 1 if turn.begun else len(history.tail)
        return await self._generator.generate(
            live,
            history.bot,
            history.user_name,
            history.turns[: len(history.turns) - kept],
            history.conversation_id,
            Asker(history.account_id, history.user_id),
            history.transcript if live.serving.id == history.submission_id else None,
            turn.asked_at,
            seed,
            turn.begun,
            stop,
            history.prefix,
        )

    async def target(self, history: History, changes: ParamChanges | None = None) -> LiveSubmission:
        """Return the conversation's own submission, as its experiment and ``changes`` have it."""
        talk = ConversationStart(history.conversation_id, history.began_at)
        live = await self._routing.target(history.submission_id, talk)
        rule = self._routing.memory_rule(history.competition)
        params = rule.applied_to(live.serving.params)
        if params is not live.serving.params:
            live = replace(live, serving=replace(live.serving, params=params))
        if history.variant is not None:
            overrides = await self._experiments.overrides(*history.variant)
            live = replace(live, serving=apply_variant(live.serving, overrides))
        if changes is not None:
            overrides = Overrides(params=changes)
            live = replace(live, serving=apply_variant(live.serving, overrides))
        return live

    async def record(
        self,
        turn: ClaimedTurn,
        generated: Generated,
        tell: Callable[[Reply], Awaitable[Answer]],
        shown: str | None = None,
        message_id: str | None = None,
    ) -> Answer:
        """Store the turn with its reply, and return the answer that ``tell`` makes of it.

        With ``shown`` the conversation goes on with that text; what is measured is the model's own words. A request with an
        Idempotency-Key is answered with it from then on. ``tell`` may store something of its own before.
        ``message_id`` is that of a reply whose caller has stored something before (``new_message_id``).
        """
        history = turn.history
        reply = NewReply(
            message_id or new_message_id(),
            generated.content if shown is None else shown,
            self._clock.now(),
            generated.finish_reason,
            generated.usage.prompt_tokens,
            generated.usage.completion_tokens,
            generated.timings.ttft_ms,
            generated.timings.total_ms,
            generated.reward_score,
            None if shown is None else generated.content,
        )
        final = await tell(
            Reply(
                message_id=reply.id,
                content=generated.content,
                finish_reason=generated.finish_reason,
                usage=generated.usage,
                timings=generated.timings,
                reward_score=generated.reward_score,
                ask_for_feedback=await self._asks_for_feedback(turn, reply),
            )
        )
        ended = EndedTurn(
            turn.lease, turn.asked, reply, tuple(history.tail), answer=answer_to(final)
        )
        await self._store(ended)
        history.message_count = ended.message_count
        history.replied(reply.id, reply.content)
        self._histories.keep(history)
        return final

    async def _asks_for_feedback(self, turn: ClaimedTurn, reply: NewReply) -> bool:
        competition, questions = turn.history.competition, turn.history.questions
        rule = self._routing.ask_rule(competition, questions)
        if rule is not None:
            return await self._asking.draw(turn.history, turn.asked, reply, *rule)
        return self._routing.asks_for_feedback(competition, questions)

    def consider_summary(self, turn: ClaimedTurn, live: LiveSubmission) -> None:
        """Have the turns before summarized in the background, once that is due."""
        self._summaries.consider(turn.history, live)

    async def _record_continued(self, turn: ClaimedTurn, generated: Generated) -> Reply:
        history = turn.history
        added = Continuation(
            history.tail[-1],
            turn.begun + generated.content,
            generated.content,
            generated.finish_reason,
            generated.usage.completion_tokens,
            generated.timings.total_ms,
            generated.reward_score,
        )
        reply = Reply(
            message_id=added.id,
            content=added.content,
            appended=added.appended,
            finish_reason=generated.finish_reason,
            usage=generated.usage,
            timings=generated.timings,
            reward_score=generated.reward_score,
        )
        ended = EndedTurn(turn.lease, None, None, continued=added, answer=answer_to(reply))
        await self._store(ended)
        history.continued(added.content)
        history.message_count = ended.message_count
        self._histories.keep(history)
        return reply

    async def _store(self, ended: EndedTurn) -> None:
        with span("store the turn"):
            await self._turn_log.end(ended)
        if ended.answer is not None and (keeper := current_keeper()) is not None:
            keeper.is_stored = True

    async def release(self, turn: ClaimedTurn, *, keeps_question: bool = True) -> None:
        """Give a turn back that has no reply. Its question stays, unless it was refused."""
        await self._release(EndedTurn(turn.lease, turn.asked if keeps_question else None, None))

    async def _release(self, ended: EndedTurn) -> None:
        """Give the lease back, also while this task is being cancelled because its client has gone."""
        task = asyncio.create_task(self._release_now(ended))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        await asyncio.shield(task)

    async def _release_now(self, ended: EndedTurn) -> None:
        try:
            await self._turn_log.end(ended)
        except ConversationBusy:
            pass  # the lease ran out meanwhile
        except DatabaseUnavailable as error:  # then it will run out
            logger.warning("a turn cannot be given back: %s", error)


async def show_memory(turn: ClaimedTurn, live: LiveSubmission) -> None:
    """Show a new message with what is remembered, as the conversation's own submission has it; before any reply is generated."""
    params, history = live.serving.params, turn.history
    if turn.asked is None:
        return
    if params.summary_tokens:
        shown = history.show_summary(params.max_input_tokens, params.summary_tokens)
        turn.asked = replace(turn.asked, summary=shown)
    if params.recall_tokens:
        found = await history.recall(params.max_input_tokens, params.recall_tokens)
        turn.asked = replace(turn.asked, recalled=found)


def new_message_id() -> str:
    return f"msg_{secrets.token_hex(16)}"


async def _unchanged(reply: Reply) -> Reply:
    return reply


def _require_storable(content: str) -> None:
    """InvalidInput for what a database cannot hold: NUL, and half of a surrogate pair."""
    if content.isascii() and "\x00" not in content:
        return
    try:
        content.encode()
    except UnicodeEncodeError:
        pass
    else:
        if "\x00" not in content:
            return
    raise InvalidInput("The message holds a character that cannot be stored.")


class PreviewService:
    def __init__(
        self,
        submissions: SubmissionService,
        routing: RoutingService,
        generator: ReplyGenerator,
    ) -> None:
        self._submissions = submissions
        self._routing = routing
        self._generator = generator

    async def preview(
        self, account: Account, submission_id: str, request: PreviewRequest
    ) -> ReplyEvents:
        submission = await self._submissions.require_visible(account, submission_id)
        await require_usable_book(request.bot, account.id)
        if submission.kind is SubmissionKind.REWARD:
            raise InvalidInput(f"{submission_id} is a reward model, which writes no replies.")
        return self._reply(Asker(account.id, ""), submission_id, request)

    async def _reply(
        self, asker: Asker, submission_id: str, request: PreviewRequest
    ) -> ReplyEvents:
        live = await self._routing.target(submission_id)
        key = f"{request.bot.name} {request.turns[:1]}"  # the same talk, turn by turn
        turns = await with_lore(request.bot, request.turns, asker.account_id)
        pieces = await self._generator.generate(
            live, request.bot, request.user_name, turns, key, asker
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, Generated):
                    yield Reply(
                        message_id=None,
                        content=piece.content,
                        finish_reason=piece.finish_reason,
                        usage=piece.usage,
                        timings=piece.timings,
                        prompt=piece.prompt,
                        reward_score=piece.reward_score,
                    )
                else:
                    yield piece
