"""Tells how the rival of a battle or of a compared regeneration was chosen, and makes the choice again."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.duels import RivalDecision, RivalReplay
from guanaco.errors import BattleNotFound, ConversationNotFound
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.database.database import Database
from guanaco_server.duels import queries
from guanaco_server.duels.tables import BattleRow, RegenerationRow
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.service import RoutingService
from guanaco_server.routing.snapshot import (
    Pool,
    RivalRecord,
    Snapshot,
    choose_rival,
    policy_of,
    rival_chances,
)

_Recorded = tuple[RivalReplay, RivalRecord | None, Snapshot | None]


class RivalReplayService:
    def __init__(self, database: Database, routing: RoutingService) -> None:
        self._database = database
        self._routing = routing

    async def of_battle(self, conversation_id: str, battle_id: str) -> RivalReplay:
        """Tell how the rival was chosen, make the choice again, and return its exact chance."""
        async with self._database.read() as session:
            row = await session.get(BattleRow, battle_id)
            if row is None or row.conversation_id != conversation_id:
                raise BattleNotFound(battle_id)
            recorded = await self._recorded(session, row)
        return await _replayed(*recorded)

    async def of_conversation(self, conversation_id: str) -> list[RivalReplay]:
        """Return the same of each battle and each compared regeneration, the oldest first."""
        async with self._database.read() as session:
            battles = await queries.of_conversation(session, conversation_id)
            regenerations = await queries.regenerations_of(session, conversation_id)
            is_known = battles or regenerations
            if not is_known and not await chat_records.begun(session, {conversation_id}):
                raise ConversationNotFound(conversation_id)
            both: list[tuple[datetime, str, BattleRow | RegenerationRow]] = []
            both += [(row.created_at, row.id, row) for row in battles]
            both += [(row.at, row.id, row) for row in regenerations]
            both.sort(key=lambda one: one[:2])
            recorded = [await self._recorded(session, row) for _, _, row in both]
        return [await _replayed(*one) for one in recorded]

    async def _recorded(self, session: AsyncSession, row: BattleRow | RegenerationRow) -> _Recorded:
        snapshot = (
            None if row.decision is None else await self._routing.recorded(session, row.decision)
        )
        found = _of_battle(row) if isinstance(row, BattleRow) else _of_regeneration(row)
        return found, row.decision, snapshot


def _of_battle(row: BattleRow) -> RivalReplay:
    own, rival = row.a_submission, row.b_submission
    if row.own_side == "b":
        own, rival = rival, own
    return RivalReplay(
        battle_id=row.id, competition=row.competition, own=own, rival=rival, at=row.created_at
    )


def _of_regeneration(row: RegenerationRow) -> RivalReplay:
    return RivalReplay(
        regeneration_id=row.id,
        competition=row.competition,
        own=row.own,
        rival=row.rival,
        drawn=row.rival if row.is_rivals else row.own,
        at=row.at,
    )


async def _replayed(
    found: RivalReplay, decision: RivalRecord | None, snapshot: Snapshot | None
) -> RivalReplay:
    """Make the choice again, as far as it was recorded and is still kept."""
    if decision is None:
        return found
    found.decision = RivalDecision.model_validate(decision.model_dump())
    if snapshot is None:
        return found
    found.entries = len(snapshot.entries)
    if snapshot.rule.kind.is_unknown:
        return found
    pool = Pool(snapshot, await policy_of(snapshot, Posterior()))
    chosen = choose_rival(pool, decision)
    found.replayed, found.is_same = chosen, chosen == found.rival
    found.chance = rival_chances(pool, decision).get(found.rival, 0.0)
    return found
