"""Compares two submissions by the replies that users ask for in place of another.

    claim     the conversation's turn, as for any regeneration
    generate  a second reply of the conversation's own submission, and one of a rival, side by side
    draw      once both are whole, a coin says which one the user gets; it is stored before anybody sees a word
    decide    an hour later, by a duty of one process, or when the reply is deleted before, it is noted whether the user went on from it within the hour

Whoever regenerates has rejected the old reply, so a new one against the old one says nothing of two submissions. Compared are only
two new replies to the same rejection, of which a coin gives one. That leaves a bias too: who disliked a submission's reply may dislike its
next one, which speaks for any other submission. It is the same in the conversations of both, and cancels in their difference
(scores.py, decision 0074).

A user's first regeneration with each submission is compared, and no other: so users count alike, and one's coin decides nothing of another's
outcome. If two conversations of one user regenerate at the same moment, the one whose replies are whole first is compared; the other one is given its own
submission's reply, which no coin has decided. All that are compared count, also those of users who left or who deleted the reply. A rival that is not ready soon after the own
reply leaves an ordinary one: that is so before the coin is thrown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import RegenerateRequest, Reply, Timings, Usage
from guanaco.duels import RegenerationPair
from guanaco.errors import GuanacoError
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.conversations.service import REPEATABLE_FOR
from guanaco_server.chat.gateway.generation import Generated
from guanaco_server.chat.gateway.replies import (
    ClaimedTurn,
    ReplyEvents,
    ReplyService,
    new_message_id,
)
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.commit_order import one_at_a_time
from guanaco_server.database.database import Database
from guanaco_server.duels import queries, records
from guanaco_server.duels.scores import RegenerationCount, scores_of_regenerations
from guanaco_server.duels.tables import RegenerationRow
from guanaco_server.routing.service import Assigned, LiveSubmission, RoutingService
from guanaco_server.routing.snapshot import RivalRecord
from guanaco_server.runtime.clock import Clock

DECIDED_AT_ONCE = 1_000  # in one transaction
DECIDED_AFTER = records.GOES_ON_WITHIN
RIVAL_WAIT_S = 10.0  # after the own reply is whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The conversation's own submission, and its rival for one regeneration."""

    drawn_id: str
    live: LiveSubmission
    assigned: Assigned


class RegenerationService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        routing: RoutingService,
        replies: ReplyService,
        competitions: CompetitionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._routing = routing
        self._replies = replies
        self._competitions = competitions

    async def regenerate(
        self, account: Account, conversation_id: str, request: RegenerateRequest
    ) -> ReplyEvents:
        """Claim the turn, and return the events of another reply to the last message, which may be compared."""
        turn = await self._replies.claim(account, conversation_id, None)
        try:
            sides = await self._sides(turn.history) if request.may_compare else None
        except BaseException:
            await self._replies.release(turn)
            raise
        return self._replies.answer(turn) if sides is None else self._compare(turn, sides)

    async def pairs(self, competition_id: str) -> list[RegenerationPair]:
        """Return the results by pair of submissions, of those whose outcome is noted."""
        competition = await self._competitions.find(competition_id)
        ends = [at for at in (competition.ends_at, competition.frozen_at) if at is not None]
        async with self._database.read() as session:
            counted = await queries.regenerations(
                session, competition_id, competition.starts_at, min(ends, default=None)
            )
        found: defaultdict[tuple[str, str], RegenerationCount] = defaultdict(RegenerationCount)
        for own, rival, is_rivals, went_on, count in counted:
            side = "other" if is_rivals else "own"
            so_far = found[own, rival]._asdict()
            so_far[f"{side}_total"] += count
            so_far[f"{side}_kept"] += count * went_on
            found[own, rival] = RegenerationCount(**so_far)
        return scores_of_regenerations(found)

    async def note_outcomes(self) -> int:
        """Note of the oldest regenerations whose time is over whether the user went on; return how many there were."""
        before = self._clock.now() - DECIDED_AFTER
        async with self._database.read() as session:
            if not await queries.undecided(session, before, 1):
                return 0

        async def decide(session: AsyncSession) -> int:
            found = await queries.undecided(session, before, DECIDED_AT_ONCE)
            await records.decide(session, found)
            return len(found)

        return await self._database.write_unit(decide)

    async def _is_compared(self, history: History) -> bool:
        """Tell whether this one is the user's first that replaces a reply of the conversation's submission, and is drawn by the rule."""
        share = self._routing.compared_regenerations(history.competition)
        is_own = history.variant is None and len(history.tail) == 1 and not history.is_last_imported
        if not is_own or secrets.randbelow(1_000_000) >= share * 1_000_000:
            return False
        async with self._database.read() as session:
            return not (
                await queries.has_rivals_words(session, history.conversation_id, history.tail[0])
                or await self._was_compared(session, history)
            )

    async def _sides(self, history: History) -> _Sides | None:
        """Choose whose replies are compared; None where this one is an ordinary one."""
        if not await self._is_compared(history):
            return None
        try:
            live = await self._replies.target(history)
        except GuanacoError:  # the ordinary reply says so
            return None
        drawn_id = f"regeneration_{secrets.token_hex(16)}"
        assigned = self._routing.rival(history.competition, live.serving.id, drawn_id)
        if assigned is None:
            return None
        owners = {live.serving.account_id, assigned.live.serving.account_id}
        return None if history.account_id in owners else _Sides(drawn_id, live, assigned)

    async def _compare(self, turn: ClaimedTurn, sides: _Sides) -> ReplyEvents:
        """Wait for both replies, and give the one that is drawn; the own one where the rival has none."""
        is_recorded = False
        try:
            reply = await self._draw(turn, sides)
            is_recorded = True
            self._replies.consider_summary(turn, sides.live)
            yield (reply.content,)
            yield reply
        finally:
            if not is_recorded:
                await self._replies.release(turn)

    async def _draw(self, turn: ClaimedTurn, sides: _Sides) -> Reply:
        others = asyncio.create_task(self._whole_or_none(turn, sides.assigned.live))
        try:
            own = await self._whole(turn, sides.live)
            await asyncio.wait({others}, timeout=RIVAL_WAIT_S)
            other = others.result() if others.done() else None
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
        is_rivals = secrets.randbelow(2) == 1
        message_id = new_message_id()
        if other is None or not await self._store_draw(turn, sides, is_rivals, message_id):
            return await self._replies.record(turn, own, _unchanged)
        shown = other if is_rivals else own
        waited = max(own.timings.total_ms, other.timings.total_ms)

        async def as_shown(reply: Reply) -> Reply:
            return reply.model_copy(
                update={
                    "content": shown.content,
                    "finish_reason": shown.finish_reason,
                    "usage": _sum(own.usage, other.usage),  # one's alone would tell who wrote it
                    "timings": Timings(ttft_ms=waited, total_ms=waited),
                    "reward_score": None,
                }
            )

        return await self._replies.record(turn, own, as_shown, shown.content, message_id)

    async def _store_draw(
        self, turn: ClaimedTurn, sides: _Sides, is_rivals: bool, message_id: str
    ) -> bool:
        """Store who was drawn, before anybody sees a word; return False if the user was compared with that submission meanwhile."""
        history = turn.history
        row = RegenerationRow(
            id=sides.drawn_id,
            conversation_id=history.conversation_id,
            message_id=message_id,
            competition=history.competition,
            own=sides.live.serving.id,
            rival=sides.assigned.live.serving.id,
            is_rivals=is_rivals,
            at=self._clock.now(),
        )
        if isinstance(sides.assigned.decision, RivalRecord):
            row.decision = sides.assigned.decision
        user = chat_records.user_key(history.account_id, history.user_id)

        async def store(session: AsyncSession) -> bool:
            await one_at_a_time(session, f"regenerations of {user}")
            if await self._was_compared(session, history):
                return False
            session.add(row)
            await self._routing.record(session, sides.assigned, REPEATABLE_FOR)
            return True

        return await self._database.write_unit(store)

    @staticmethod
    async def _was_compared(session: AsyncSession, history: History) -> bool:
        """Tell whether a regeneration of this user that replaced a reply of this submission was compared."""
        conversations = chat_records.of_user(
            history.account_id, history.user_id, history.competition
        )
        return await queries.was_compared(session, history.submission_id, conversations)

    async def _whole(self, turn: ClaimedTurn, live: LiveSubmission) -> Generated:
        pieces = await self._replies.generate(turn, live)
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, Generated):
                    return piece
        raise AssertionError("a reply that is begun ends or raises")

    async def _whole_or_none(self, turn: ClaimedTurn, live: LiveSubmission) -> Generated | None:
        """A rival that fails leaves an ordinary reply: it does so before anything is drawn."""
        try:
            return await self._whole(turn, live)
        except GuanacoError as error:
            logger.info("a compared reply by %s failed: %s", live.serving.id, error)
        except Exception as error:
            logger.error("a compared reply by %s failed", live.serving.id, exc_info=error)
        return None


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


async def _unchanged(reply: Reply) -> Reply:
    return reply
