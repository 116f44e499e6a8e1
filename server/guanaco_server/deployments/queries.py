"""Every query on deployments."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.deployments.tables import DeploymentRow


async def by_submission(session: AsyncSession, submission_id: str) -> DeploymentRow | None:
    return await session.get(DeploymentRow, submission_id)


async def locked(session: AsyncSession, submission_id: str) -> DeploymentRow | None:
    """Until the transaction ends nobody else gets it so."""
    return await session.get(DeploymentRow, submission_id, with_for_update=True)


async def all_rows(session: AsyncSession) -> Sequence[DeploymentRow]:
    return (await session.scalars(select(DeploymentRow))).all()


async def remove(session: AsyncSession, submission_id: str) -> None:
    await session.execute(delete(DeploymentRow).where(DeploymentRow.submission_id == submission_id))
