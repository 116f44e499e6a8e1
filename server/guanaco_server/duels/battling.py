"""Answers a message by two submissions at once, so that a user can say which reply is better.

    claim     the conversation's turn, as for any message (chat/gateway/replies.py)
    generate  the reply of the conversation's submission and that of a rival, side by side; sides are drawn at random
    record    store the battle, then the turn, which goes on with either reply until the user votes, drawn at random

So nothing tells an app which side is the conversation's own: not what is answered, nor the message, its edits or times.

A rival that fails, or that there is none of, leaves an ordinary reply. If the conversation's own submission fails, so does
the turn. The rival waits for a place, is counted and is paid for as any reply of its submission.

A user who stops a battle keeps what both have written. A reply that had not begun is not written: without the rival's
it is an ordinary reply, without the own one the message stays unanswered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Reply
from guanaco.competitions import CHOSEN
from guanaco.duels import (
    Battle,
    BattleReply,
    BattleRequest,
    Side,
)
from guanaco.errors import BattlesOff, Conflict, GuanacoError
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.conversations.service import REPEATABLE_FOR
from guanaco_server.chat.gateway.generation import Generated, Pieces
from guanaco_server.chat.gateway.replies import ClaimedTurn, ReplyService, show_memory
from guanaco_server.chat.gateway.stopping import Stop
from guanaco_server.database.database import Database
from guanaco_server.duels import queries
from guanaco_server.duels.tables import BattleRow
from guanaco_server.routing.service import Assigned, LiveSubmission, RoutingService
from guanaco_server.routing.snapshot import RivalRecord
from guanaco_server.runtime.clock import Clock

logger = logging.getLogger(__name__)

SIDES: tuple[Side, Side] = ("a", "b")


@dataclass(frozen=True, slots=True)
class SidePieces:
    """Texts of one side's reply that arrived together."""

    side: Side
    texts: Pieces


BattleEvents = AsyncGenerator[SidePieces | Battle, None]
_Arrived = tuple[Side, Pieces | Generated | BaseException]


class BattleStop:
    """Ends both replies of a battle where they are."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[_Arrived] = asyncio.Queue()  # a reply's length bounds it
        self.begun: set[Side] = set()
        self.sides: dict[Side, Stop] = {side: Stop() for side in SIDES}

    def give(self) -> None:
        """Keep what is written; a reply that has not begun is not waited for any more."""
        for side, stop in self.sides.items():
            if side in self.begun:
                stop.give()
            else:
                self.arrived.put_nowait((side, Conflict("The reply was stopped.")))


class BattleService:
    def __init__(
        self, database: Database, clock: Clock, routing: RoutingService, replies: ReplyService
    ) -> None:
        self._database = database
        self._clock = clock
        self._routing = routing
        self._replies = replies

    def are_on(self, competition_id: str) -> bool:
        """Tell whether two submissions may answer one message of the competition's conversations."""
        return self._routing.has_battles(competition_id)

    async def battle(
        self,
        account: Account,
        conversation_id: str,
        request: BattleRequest,
        stop: BattleStop | None = None,
    ) -> BattleEvents:
        """Claim the turn, and return the events of both replies, which ``stop`` ends.

        Raises:
            BattlesOff: The conversation's competition has no battles, or it is part of an experiment.
        """
        turn = await self._replies.claim(account, conversation_id, request.content)
        history = turn.history
        if refusal := self._refusal(history):
            await self._replies.release(turn, keeps_question=False)
            raise refusal
        return self._generate_both_replies(turn, stop or BattleStop())

    def _refusal(self, history: History) -> BattlesOff | None:
        """Return why a conversation has no battles, if so."""
        competition = history.competition
        if history.variant is not None:
            return BattlesOff(competition, "it takes part in an experiment")
        if competition == CHOSEN:
            return BattlesOff(
                competition, "its app chose the model, so it takes part in no competition"
            )
        if not self._routing.knows_running(competition):
            return BattlesOff(competition, f"the competition {competition} is over")
        return None if self._routing.has_battles(competition) else BattlesOff(competition)

    async def _generate_both_replies(self, turn: ClaimedTurn, stop: BattleStop) -> BattleEvents:
        history = turn.history
        own = SIDES[secrets.randbelow(2)]
        other: Side = "b" if own == "a" else "a"
        is_recorded = False
        tasks: list[asyncio.Task[None]] = []
        try:
            live = await self._replies.target(history)
            await show_memory(turn, live)
            battle_id = f"battle_{secrets.token_hex(16)}"
            met = await self._duels_by_opponent(history)
            assigned = self._routing.rival(history.competition, live.serving.id, battle_id, met)
            rival = None if assigned is None else assigned.live
            whole: dict[Side, Generated] = {}
            waiting = {own}
            tasks.append(asyncio.create_task(self._run(own, turn, live, stop)))
            if rival is not None:
                waiting.add(other)
                tasks.append(asyncio.create_task(self._run(other, turn, rival, stop)))
            while waiting:
                side, piece = await stop.arrived.get()
                if side not in waiting:
                    continue
                if isinstance(piece, BaseException):
                    if side == own:
                        raise piece
                    _note_failure(rival, piece)
                    waiting.discard(side)
                elif isinstance(piece, Generated):
                    whole[side] = piece
                    waiting.discard(side)
                else:
                    yield SidePieces(side, piece)
            battle = await self._record(battle_id, turn, own, live, assigned, whole)
            is_recorded = True
            self._replies.consider_summary(turn, live)
            yield battle
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not is_recorded:
                await self._replies.release(turn)

    async def _duels_by_opponent(self, history: History) -> dict[str, int]:
        """Count the user's duels between the conversation's submission and each other one."""
        async with self._database.read() as session:
            conversations = chat_records.of_user(
                history.account_id, history.user_id, history.competition
            )
            return await queries.met(session, history.submission_id, conversations)

    async def _run(
        self, side: Side, turn: ClaimedTurn, live: LiveSubmission, stop: BattleStop
    ) -> None:
        """Put a side's pieces into the queue, then its whole reply or what went wrong."""
        try:
            pieces = await self._replies.generate(turn, live, stop=stop.sides[side])
            async with aclosing(pieces):
                async for piece in pieces:
                    stop.begun.add(side)
                    stop.arrived.put_nowait((side, piece))
        except Exception as error:  # noqa: BLE001 - the reader of the queue raises or logs it
            stop.arrived.put_nowait((side, error))

    async def _record(
        self,
        battle_id: str,
        turn: ClaimedTurn,
        own: Side,
        live: LiveSubmission,
        assigned: Assigned | None,
        whole: dict[Side, Generated],
    ) -> Battle:
        """Store the battle first: a turn that is stored has its battle then, whatever happens in between."""
        is_battle = len(whole) == len(SIDES)
        stands = SIDES[secrets.randbelow(2)] if is_battle else own

        async def store_battle(reply: Reply) -> Battle:
            assert reply.message_id is not None
            if is_battle and assigned is not None:
                rival = assigned.live
                row = self._row(battle_id, turn, own, stands, live, rival, whole, reply.message_id)
                if isinstance(assigned.decision, RivalRecord):
                    row.decision = assigned.decision

                async def store(session: AsyncSession) -> None:
                    session.add(row)
                    await self._routing.record(session, assigned, REPEATABLE_FOR)

                await self._database.write_unit(store)
            return Battle(
                battle_id=battle_id if is_battle else None,
                message_id=reply.message_id,
                a=_battle_reply(whole.get("a")),
                b=_battle_reply(whole.get("b")),
                continues_from=stands,
                ask_for_feedback=reply.ask_for_feedback,
            )

        shown = whole[stands].content if is_battle else None
        return await self._replies.record(turn, whole[own], store_battle, shown)

    def _row(
        self,
        battle_id: str,
        turn: ClaimedTurn,
        own: Side,
        stands: Side,
        live: LiveSubmission,
        rival: LiveSubmission,
        whole: dict[Side, Generated],
        message_id: str,
    ) -> BattleRow:
        a, b = (live, rival) if own == "a" else (rival, live)
        return BattleRow(
            id=battle_id,
            conversation_id=turn.history.conversation_id,
            message_id=message_id,
            competition=turn.history.competition,
            a_submission=a.serving.id,
            b_submission=b.serving.id,
            a_content=whole["a"].content,
            b_content=whole["b"].content,
            a_finish_reason=whole["a"].finish_reason,
            b_finish_reason=whole["b"].finish_reason,
            own_side=own,
            continues_from=stands,
            created_at=self._clock.now(),
        )


def _battle_reply(generated: Generated | None) -> BattleReply | None:
    if generated is None:
        return None
    return BattleReply(content=generated.content, finish_reason=generated.finish_reason)


def _note_failure(rival: LiveSubmission | None, error: BaseException) -> None:
    name = rival.serving.id if rival is not None else "the rival"
    if not isinstance(error, GuanacoError):
        logger.error("the second reply of a battle, by %s, failed", name, exc_info=error)
        return
    logger.info("the second reply of a battle, by %s, failed: %s", name, error)
