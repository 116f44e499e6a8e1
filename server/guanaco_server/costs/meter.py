"""Notes when a deployment's GPUs begin and cease to cost: from ready until it is no longer requested.

    ready → an interval begins, unless one is open     (again after a restart of the platform: the same one goes on)
    its server dies and is started again → it goes on  (the GPUs stay taken)
    withdrawn, put to sleep, or deployed anew → it ends
    other replicas → it ends, and another one begins
    a redeploy → the version beside has an interval of its own, until it takes over
    deployments share an engine → each has an interval; with other users, or another day, other ones begin

The cost of an engine while the same deployments share it is divided when that ends:

    busy_s   of the seconds in which somebody's reply was under way   by tokens: prompt tokens that were computed, and
                                                                      GENERATED_WEIGHT for each that was generated
    the rest, in which it was held for all of them                    in equal parts

Until then the division is that of the use so far, and a version of Guanaco that does not know of it takes equal parts. Several
gateways add up their busy seconds, to no more than there are. A reply that is broken off has no count of tokens, and adds none.

Each within the transaction that changes the deployment, so that the two never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.recipes import Recipe
from guanaco_server.costs import queries
from guanaco_server.costs.tables import GpuIntervalRow
from guanaco_server.recipes.prices import PriceTable

# A prompt's tokens are computed together, those of a reply one by one: providers take 3 to 5 times as much for them.
GENERATED_WEIGHT = 4.0
LONGEST = timedelta(days=1)  # so that a day's cost is divided by that day's use


def weighted(computed: int, generated: int) -> float:
    """Return the tokens by which a reply shares in the cost of its engine. ``computed`` are the prompt's without those that were cached."""
    return computed + GENERATED_WEIGHT * generated


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
        await self.end(session, key, at)
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

    async def divide(
        self, session: AsyncSession, engine: str, keys: Iterable[str], at: datetime
    ) -> None:
        """Divide the cost of an engine between those of its deployments that count, from now on."""
        held = [
            key
            for key in sorted(keys)
            if await queries.open_interval(session, *_parts(key)) is not None
        ]
        part, name = (1 / len(held), engine) if len(held) > 1 else (None, None)
        for key in held:
            interval = await queries.open_interval(session, *_parts(key))
            assert interval is not None, "it is held"
            if (interval.part, interval.engine) != (part, name):
                fresh = await self._begin_again(session, interval, at)
                fresh.part, fresh.engine = part, name

    async def note_use(
        self,
        session: AsyncSession,
        tokens: Mapping[str, float],
        busy_s: Mapping[str, float],
        at: datetime,
    ) -> None:
        """Add weighted tokens to deployments, and seconds in which they were busy to engines, where several share one."""
        for key, count in tokens.items():
            await queries.add_tokens(session, *_parts(key), count)
        for engine, seconds in busy_s.items():
            await queries.add_busy(session, engine, seconds)
            group = await queries.open_of_engine(session, engine)
            if group and at - group[0].began_at > LONGEST:
                await self._begin_again(session, group[0], at)

    async def end(self, session: AsyncSession, key: str, at: datetime) -> None:
        submission_id, server = _parts(key)
        interval = await queries.open_interval(session, submission_id, server)
        if interval is not None:
            await session.delete(await self._begin_again(session, interval, at))
            await session.flush()

    async def _begin_again(
        self, session: AsyncSession, interval: GpuIntervalRow, at: datetime
    ) -> GpuIntervalRow:
        """End an interval, with those that share its engine, and return the one that follows. One that has just begun is returned itself."""
        if interval.began_at >= at:
            return interval
        group = [interval]
        if interval.engine is not None:
            shared = await queries.open_of_engine(session, interval.engine)
            group = [one for one in shared if one.began_at < at]
        parts = parts_by_use(group, at)
        fresh = {one.id: one.next_interval(at, one.part) for one in group}
        for one in group:
            if one.engine is not None:
                one.part = parts[one.id]
            one.ended_at = at
        session.add_all(fresh.values())
        await session.flush()
        return fresh[interval.id]


def parts_by_use(group: Sequence[GpuIntervalRow], at: datetime) -> dict[int, float]:
    """Return the part of the cost that each interval of an engine pays, by what was used until then. The parts add up to 1."""
    equal = 1 / len(group)
    used = sum(one.tokens or 0.0 for one in group)
    lasted_s = max((at - one.began_at).total_seconds() for one in group)
    if used <= 0 or lasted_s <= 0:
        return {one.id: equal for one in group}
    busy = min(1.0, max(one.busy_s or 0.0 for one in group) / lasted_s)
    return {one.id: busy * (one.tokens or 0.0) / used + (1 - busy) * equal for one in group}


def _parts(key: str) -> tuple[str, str | None]:
    """Return the submission, and the key of a version beside the one that serves."""
    submission_id, mark, _ = key.partition("@")
    return submission_id, key if mark else None
