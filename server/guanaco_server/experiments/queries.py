"""Every query on experiments and exposures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Subquery, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import among
from guanaco_server.experiments.tables import ExperimentRow, ExposureRow


async def by_name(session: AsyncSession, name: str) -> ExperimentRow | None:
    return await session.get(ExperimentRow, name)


async def all_rows(session: AsyncSession) -> Sequence[ExperimentRow]:
    return (
        await session.scalars(
            select(ExperimentRow).order_by(ExperimentRow.created_at, ExperimentRow.name)
        )
    ).all()


async def locked(session: AsyncSession) -> dict[str, ExperimentRow]:
    """Lock all experiments until the transaction ends, and return them by name."""
    statement = select(ExperimentRow).order_by(ExperimentRow.name).with_for_update()
    return {row.name: row for row in await session.scalars(statement)}


def groups(experiment: str) -> Subquery:
    """Select ``conversation_id``, ``variant`` and ``unit`` of its conversations, for other rooms to count by."""
    return (
        select(ExposureRow.conversation_id, ExposureRow.variant, ExposureRow.unit)
        .where(ExposureRow.experiment == experiment)
        .subquery()
    )


async def variants_of(session: AsyncSession, conversation_ids: Iterable[str]) -> dict[str, str]:
    """Return the variant of each conversation that takes part in an experiment."""
    rows = await session.execute(
        select(ExposureRow.conversation_id, ExposureRow.variant).where(
            among(session, ExposureRow.conversation_id, conversation_ids)
        )
    )
    return {conversation_id: variant for conversation_id, variant in rows}


async def sizes(session: AsyncSession, experiment: str) -> dict[str, tuple[int, int]]:
    """Return the numbers of users and conversations by variant."""
    rows = await session.execute(
        select(ExposureRow.variant, func.count(ExposureRow.unit.distinct()), func.count())
        .where(ExposureRow.experiment == experiment)
        .group_by(ExposureRow.variant)
    )
    return {variant: (users, conversations) for variant, users, conversations in rows}
