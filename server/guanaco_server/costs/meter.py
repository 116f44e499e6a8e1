"""Notes when a deployment's GPUs begin and cease to cost: from ready until nobody wishes for it.

    ready → an interval begins, unless one is open     (again after a restart of the platform: the same one goes on)
    its server dies and is started again → it goes on  (the GPUs stay taken)
    withdrawn, put to sleep, or deployed anew → it ends
    other replicas → it ends, and another one begins
    a redeploy → the version beside has an interval of its own, until it takes over
    deployments share an engine → each has an interval, with an equal part of the cost; with another number of them, other ones

Each within the transaction that changes the deployment, so that the two never differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.recipes import Recipe
from guanaco_server.costs import queries
from guanaco_server.costs.tables import GpuIntervalRow
from guanaco_server.recipes.prices import PriceTable


class CostMeter:
    def __init__(self, prices: PriceTable) -> None:
        self._prices = prices

    async def begin(
        self,
        session: AsyncSession,
        key: str,
        developer: str,
        recipe: Recipe | None,
        at: datetime,
        replicas: int = 1,
    ) -> None:
        """Begin to count; do nothing without GPUs. It may be repeated. The deployment's row lets one of two callers in first."""
        if recipe is None:
            return
        submission_id, server = _parts(key)
        known = await queries.open_interval(session, submission_id, server)
        if known is not None and known.replicas == replicas:
            return
        await queries.close(session, submission_id, server, at)
        if replicas == 0:
            return
        session.add(
            GpuIntervalRow(
                submission_id=submission_id,
                server=server,
                developer=developer,
                gpu_type=recipe.gpu_type,
                gpu_count=recipe.gpu_count,
                replicas=replicas,
                gpu_hour_price=self._prices.per_hour(recipe.gpu_type),
                began_at=at,
            )
        )

    async def divide(self, session: AsyncSession, keys: Iterable[str], at: datetime) -> None:
        """Divide the cost of an engine equally between those of its deployments that count, from now on."""
        found = [await queries.open_interval(session, *_parts(key)) for key in sorted(keys)]
        held = [interval for interval in found if interval is not None]
        part = 1 / len(held) if len(held) > 1 else None
        for interval in held:
            if interval.part == part:
                continue
            if interval.began_at >= at:
                interval.part = part
                continue
            interval.ended_at = at
            session.add(interval.from_now_on(at, part))

    async def end(self, session: AsyncSession, key: str, at: datetime) -> None:
        submission_id, server = _parts(key)
        await queries.close(session, submission_id, server, at)


def _parts(key: str) -> tuple[str, str | None]:
    """The submission, and the key of a version beside the one that serves."""
    submission_id, mark, _ = key.partition("@")
    return submission_id, key if mark else None
