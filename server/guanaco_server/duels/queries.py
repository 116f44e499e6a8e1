"""Every query on battles and the votes on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.duels.scores import CountedVote
from guanaco_server.duels.tables import BattleRow


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


async def page(
    session: AsyncSession, submission_id: str, before: tuple[datetime, str] | None, limit: int
) -> Sequence[BattleRow]:
    """Return battles of a submission that were voted on, the latest vote first."""
    row = BattleRow
    statement = select(row).where(_is_of(submission_id), row.outcome.is_not(None))
    if before is not None:
        at, battle_id = before
        statement = statement.where(
            or_(row.voted_at < at, and_(row.voted_at == at, row.id < battle_id))
        )
    order = statement.order_by(row.voted_at.desc(), row.id.desc()).limit(limit)
    return (await session.scalars(order)).all()


async def results_of(session: AsyncSession, submission_id: str) -> list[CountedVote]:
    """Count a submission's votes by both sides' submissions and outcome."""
    return await _counted(session, _is_of(submission_id))


async def results_in(session: AsyncSession, competition: str) -> list[CountedVote]:
    """Count a competition's votes by both sides' submissions and outcome."""
    return await _counted(session, BattleRow.competition == competition)


async def delete_of_messages(session: AsyncSession, message_ids: Sequence[str]) -> None:
    await session.execute(
        delete(BattleRow)
        .where(BattleRow.message_id.in_(message_ids))
        .execution_options(synchronize_session=False)
    )


async def _counted(session: AsyncSession, which: ColumnElement[bool]) -> list[CountedVote]:
    row = BattleRow
    statement = (
        select(row.a_submission, row.b_submission, row.outcome, func.count())
        .where(which, row.outcome.is_not(None))
        .group_by(row.a_submission, row.b_submission, row.outcome)
    )
    rows = await session.execute(statement)
    return [(a, b, outcome, count) for a, b, outcome, count in rows if outcome is not None]


def _is_of(submission_id: str) -> ColumnElement[bool]:
    return or_(BattleRow.a_submission == submission_id, BattleRow.b_submission == submission_id)
