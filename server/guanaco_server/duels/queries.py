"""Every query on battles and the votes on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import upsert
from guanaco_server.database.database import among
from guanaco_server.duels.scores import PairResults
from guanaco_server.duels.tables import BattleRow, DuelPairRow, RegenerationRow

NO_MESSAGE = ""  # of a battle whose replies were deleted


async def locked(session: AsyncSession, battle_id: str) -> BattleRow | None:
    """Return a battle, on which nobody else votes until this transaction ends."""
    return await session.get(BattleRow, battle_id, with_for_update=True)


async def of_conversation(session: AsyncSession, conversation_id: str) -> Sequence[BattleRow]:
    """Return the oldest first."""
    statement = (
        select(BattleRow)
        .where(BattleRow.conversation_id == conversation_id)
        .order_by(BattleRow.created_at, BattleRow.id)
    )
    return (await session.scalars(statement)).all()


async def regenerations_of(
    session: AsyncSession, conversation_id: str
) -> Sequence[RegenerationRow]:
    """Return the compared regenerations of a conversation."""
    row = RegenerationRow
    return (await session.scalars(select(row).where(row.conversation_id == conversation_id))).all()


async def page(
    session: AsyncSession, submission_id: str, before: tuple[datetime, str] | None, limit: int
) -> Sequence[BattleRow]:
    """Return battles of a submission that were voted on and whose replies are there, the latest vote first."""
    row = BattleRow
    statement = select(row).where(
        _is_of(submission_id), row.outcome.is_not(None), row.message_id != NO_MESSAGE
    )
    if before is not None:
        at, battle_id = before
        statement = statement.where(
            or_(row.voted_at < at, and_(row.voted_at == at, row.id < battle_id))
        )
    order = statement.order_by(row.voted_at.desc(), row.id.desc()).limit(limit)
    return (await session.scalars(order)).all()


async def met(session: AsyncSession, own: str, conversations: Select[str]) -> dict[str, int]:
    """Count the voted duels between ``own`` and each other submission in these conversations."""
    row = BattleRow
    statement = (
        select(row.a_submission, row.b_submission, func.count())
        .where(row.conversation_id.in_(conversations), row.voted_at.is_not(None), _is_of(own))
        .group_by(row.a_submission, row.b_submission)
    )
    found: Counter[str] = Counter()
    for a, b, count in await session.execute(statement):
        found[b if a == own else a] += count
    return dict(found)


async def pairs_of(session: AsyncSession, submission_id: str) -> Sequence[DuelPairRow]:
    """Return a submission's duels that count, in every competition."""
    row = DuelPairRow
    is_of = or_(row.first == submission_id, row.second == submission_id)
    return (await session.scalars(select(row).where(is_of))).all()


async def pairs_in(session: AsyncSession, competition: str) -> Sequence[DuelPairRow]:
    """Return the duels of a competition that count."""
    row = DuelPairRow
    order = select(row).where(row.competition == competition).order_by(row.first, row.second)
    return (await session.scalars(order)).all()


async def replace_pairs(
    session: AsyncSession, competition: str, pairs: Mapping[tuple[str, str], PairResults]
) -> None:
    """Store the duels of a competition that count, and delete the pairs that have none any more."""
    row = DuelPairRow
    known = {(one.first, one.second): one for one in await pairs_in(session, competition)}
    gone = known.keys() - pairs.keys()
    for first, second in gone:
        await session.delete(known[first, second])
    rows = [
        {
            "competition": competition,
            "first": first,
            "second": second,
            "won": results.won,
            "lost": results.lost,
            "tied": results.tied,
            "both_bad": results.both_bad,
        }
        for (first, second), results in pairs.items()
    ]
    await upsert(session, row, rows)


async def has_rivals_words(session: AsyncSession, conversation_id: str, message_id: str) -> bool:
    """Tell whether another submission may have written the reply: in a battle, or when it was drawn."""
    for row in (BattleRow, RegenerationRow):
        is_of_reply = (row.conversation_id == conversation_id, row.message_id == message_id)
        if await session.scalar(select(row.id).where(*is_of_reply).limit(1)):
            return True
    return False


async def was_compared(session: AsyncSession, own: str, conversations: Select[str]) -> bool:
    """Tell whether a regeneration in these conversations, with that submission of their own, was compared."""
    row = RegenerationRow
    statement = select(row.id).where(row.conversation_id.in_(conversations), row.own == own)
    return await session.scalar(statement.limit(1)) is not None


async def undecided(
    session: AsyncSession, before: datetime, limit: int
) -> Sequence[tuple[str, str]]:
    """Return the oldest compared regenerations from before that time of which it is not noted whether the user went on, with their messages."""
    row = RegenerationRow
    statement = select(row.id, row.message_id).where(row.went_on.is_(None), row.at <= before)
    found = await session.execute(statement.order_by(row.at, row.id).limit(limit))
    return [(one, message_id) for one, message_id in found]


async def undecided_of_messages(
    session: AsyncSession, message_ids: Sequence[str], conversations: Select[str]
) -> Sequence[tuple[str, str]]:
    """Return the compared regenerations of these messages, in these conversations, of which it is not noted whether the user went on."""
    row = RegenerationRow
    statement = select(row.id, row.message_id).where(
        row.conversation_id.in_(conversations),
        row.message_id.in_(message_ids),
        row.went_on.is_(None),
    )
    return [(one, message_id) for one, message_id in await session.execute(statement)]


async def note_whether_users_went_on(
    session: AsyncSession, regenerations: Sequence[str], went_on: bool
) -> None:
    row = RegenerationRow
    await session.execute(
        update(row)
        .where(among(session, row.id, regenerations))
        .values(went_on=went_on)
        .execution_options(synchronize_session=False)
    )


async def delete_regenerations(session: AsyncSession, regenerations: Sequence[str]) -> None:
    await session.execute(
        delete(RegenerationRow)
        .where(among(session, RegenerationRow.id, regenerations))
        .execution_options(synchronize_session=False)
    )


async def regenerations(
    session: AsyncSession, competition: str, since: datetime, until: datetime | None
) -> list[tuple[str, str, bool, bool, int]]:
    """Count the compared regenerations by own submission, rival, who wrote the reply, and whether the user went on."""
    row = RegenerationRow
    is_within = [row.competition == competition, row.went_on.is_not(None), row.at >= since]
    if until is not None:
        is_within.append(row.at < until)
    columns = (row.own, row.rival, row.is_rivals, row.went_on)
    rows = await session.execute(
        select(*columns, func.count()).where(*is_within).group_by(*columns)
    )
    return [(own, rival, by_rival, bool(went_on), n) for own, rival, by_rival, went_on, n in rows]


async def forget_replies(session: AsyncSession, message_ids: Sequence[str]) -> None:
    """Delete the replies of battles whose messages are deleted. A vote stays, for it was counted; a battle without one goes."""
    is_theirs = BattleRow.message_id.in_(message_ids)
    await session.execute(
        delete(BattleRow)
        .where(is_theirs, BattleRow.voted_at.is_(None))
        .execution_options(synchronize_session=False)
    )
    await session.execute(
        update(BattleRow)
        .where(is_theirs)
        .values(a_content="", b_content="", message_id=NO_MESSAGE)
        .execution_options(synchronize_session=False)
    )


def _is_of(submission_id: str) -> ColumnElement[bool]:
    return or_(BattleRow.a_submission == submission_id, BattleRow.b_submission == submission_id)
