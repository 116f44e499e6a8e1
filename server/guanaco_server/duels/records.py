"""Reads votes on battles for the leaderboard, raw, in bulk, and the newest alone, and keeps what it has counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.database.database import among
from guanaco_server.duels import queries
from guanaco_server.duels.scores import PairResults
from guanaco_server.duels.tables import BattleRow, DuelRow

DUELS_AT_ONCE = 5_000
GOES_ON_WITHIN = timedelta(hours=1)  # the time in which a user goes on from a reply, or does not


@dataclass(frozen=True, slots=True)
class RecordedDuel:
    """A battle with every vote on it, the oldest first, as (when, outcome)."""

    id: str
    account_id: str
    user_id: str
    a_submission: str
    b_submission: str
    votes: tuple[tuple[datetime, str], ...]

    @property
    def user_key(self) -> str:
        return chat_records.user_key(self.account_id, self.user_id)


async def replace_pairs(
    session: AsyncSession, competition: str, pairs: Mapping[tuple[str, str], PairResults]
) -> None:
    """Store the duels of a competition that count, by pair, within the caller's transaction."""
    await queries.replace_pairs(session, competition, pairs)


async def count(session: AsyncSession, competition: str) -> int:
    """Count the battles of a competition that have a vote."""
    voted = func.count(BattleRow.voted_at)
    return await session.scalar(select(voted).where(BattleRow.competition == competition)) or 0


async def of_competition(
    session: AsyncSession, competition: str, since: datetime | None = None
) -> AsyncIterator[list[RecordedDuel]]:
    """Yield the duels of a competition, or those that were voted on since, some thousands at a time."""
    row = BattleRow
    which = [row.competition == competition, row.voted_at.is_not(None)]
    if since is not None:
        which.append(row.voted_at >= since)
    ids = list(await session.scalars(select(row.id).where(*which)))
    for start in range(0, len(ids), DUELS_AT_ONCE):
        yield await _duels(session, ids[start : start + DUELS_AT_ONCE])


async def _duels(session: AsyncSession, ids: Sequence[str]) -> list[RecordedDuel]:
    row = BattleRow
    conversations = select(row.conversation_id).where(among(session, row.id, ids))
    users = await chat_records.users_of(session, conversations)
    statement = (
        select(
            row.id,
            row.conversation_id,
            row.a_submission,
            row.b_submission,
            DuelRow.at,
            DuelRow.outcome,
        )
        .join(DuelRow, DuelRow.battle_id == row.id)
        .where(among(session, row.id, ids))
        .order_by(row.id, DuelRow.revision)
    )
    found = []
    for (battle, conversation, a, b), votes in groupby(
        await session.execute(statement), lambda one: (one[0], one[1], one[2], one[3])
    ):
        given = tuple((vote[4], vote[5]) for vote in votes)
        if conversation in users:
            found.append(RecordedDuel(battle, *users[conversation], a, b, given))
    return found


async def replies(session: AsyncSession, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return what side a and side b replied, by battle."""
    row = BattleRow
    statement: Select[str, str, str] = select(row.id, row.a_content, row.b_content)
    rows = await session.execute(statement.where(among(session, row.id, ids)))
    return {battle: (a, b) for battle, a, b in rows}


async def decide(session: AsyncSession, regenerations: Sequence[tuple[str, str]]) -> None:
    """Note of compared regenerations, given with their messages, whether the user went on from them; drop those whose reply is not there."""
    messages = [message_id for _, message_id in regenerations]
    stands = await chat_records.answered_within(session, messages, GOES_ON_WITHIN)
    for went_on in (False, True):
        ids = [one for one, reply in regenerations if stands.get(reply) is went_on]
        await queries.note_whether_users_went_on(session, ids, went_on)
    lost = [one for one, reply in regenerations if reply not in stands]
    await queries.delete_regenerations(session, lost)


async def forget_messages(session: AsyncSession, message_ids: Sequence[str]) -> None:
    """Within the caller's transaction, which deletes these messages: delete both replies of their battles, and decide what was compared."""
    await queries.forget_replies(session, message_ids)
    conversations = chat_records.of_messages(message_ids)
    await decide(session, await queries.undecided_of_messages(session, message_ids, conversations))
