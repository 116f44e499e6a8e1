"""Turns intervals into hours and money: GPUs · replicas · hours · price, for the part within the time asked for."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.costs import Costs, DeveloperCost, Spending, SubmissionCost
from guanaco.errors import BudgetExceeded, InvalidInput
from guanaco_server.costs import queries
from guanaco_server.costs.meter import parts_by_use
from guanaco_server.costs.tables import GpuIntervalRow
from guanaco_server.database.database import Database
from guanaco_server.observability.by_submission import Spend
from guanaco_server.observability.fleet import FleetSpending
from guanaco_server.recipes.prices import WARNING_SHARE, Budgets
from guanaco_server.runtime.clock import Clock

HOUR_S = 3_600

logger = logging.getLogger(__name__)


class CostService:
    def __init__(self, database: Database, clock: Clock, budgets: Budgets) -> None:
        self._database = database
        self._clock = clock
        self._budgets = budgets

    @property
    def currency(self) -> str:
        return self._budgets.currency

    async def costs(self, since: datetime | None = None, until: datetime | None = None) -> Costs:
        """Return the costs of all submissions, by default from the beginning of the month until now."""
        now = self._clock.now()
        until = min(until or now, now)
        since = since or _month_of(until)
        if since > until:
            raise InvalidInput("`since` must not be after `until`, nor in the future.")
        async with self._database.read() as session:
            rows = await self._between(session, since, until)
        return Costs(
            **_spending(rows, since, until).model_dump(),
            since=since,
            until=until,
            currency=self._budgets.currency,
            developers=self._by_developer(rows, since, until),
            submissions=self._by_submission(rows, since, until),
        )

    async def spent(self, since: datetime, until: datetime) -> float:
        """Return what all GPUs cost within a period."""
        async with self._database.read() as session:
            rows = await self._between(session, since, until)
        return _spending(rows, since, until).cost

    async def spent_by_slot(self, edges: Sequence[datetime]) -> list[float]:
        """Return what all GPUs cost in each slot, from one edge to the next, and not after now."""
        now = self._clock.now()
        async with self._database.read() as session:
            rows = await self._between(session, edges[0], min(now, edges[-1]))
        slots = itertools.pairwise(min(edge, now) for edge in edges)
        return [_spending(rows, since, until).cost for since, until in slots]

    async def fleet(self) -> FleetSpending:
        """Return what is held now and what it costs, with what each submission has cost this month."""
        now = self._clock.now()
        since = _month_of(now)
        async with self._database.read() as session:
            rows = await self._between(session, since, now)
        held = [row for row in rows if row.ended_at is None]
        gpus: defaultdict[str, float] = defaultdict(float)
        per_hour: defaultdict[str, float] = defaultdict(float)
        for row in held:
            gpus[row.gpu_type] += row.gpus
            per_hour[row.gpu_type] += _price_per_hour(row)
        return FleetSpending(
            {gpu_type: round(held) for gpu_type, held in gpus.items()},
            per_hour,
            {
                submission_id: Spend(
                    per_hour=sum(_price_per_hour(row) for row in own if row.ended_at is None),
                    this_month=_spending(own, since, now).cost,
                )
                for submission_id, own in _grouped(rows, lambda row: row.submission_id).items()
            },
        )

    async def of_submission(
        self, submission_id: str, developer: str, submitted_at: datetime
    ) -> SubmissionCost:
        """Return what the submission has cost since it was submitted, or since its first GPUs if those are older."""
        now = self._clock.now()
        async with self._database.read() as session:
            rows = await self._divided(session, await queries.of_submission(session, submission_id))
        since = min(submitted_at, *(row.began_at for row in rows), now)
        return self._submission(submission_id, developer, rows, since, now)

    async def require_within_budget(self, developer: str) -> str | None:
        """Check the month's budget before a new deployment. BudgetExceeded if it is used up; a sentence if most of it is."""
        budget = self._budgets.of(developer)
        if budget is None:
            return None
        now = self._clock.now()
        async with self._database.read() as session:
            rows = await self._between(session, _month_of(now), now, developer)
        spent = _spending(rows, _month_of(now), now).cost
        if spent >= budget:
            raise BudgetExceeded(developer, spent, budget, self._budgets.currency)
        if spent < WARNING_SHARE * budget:
            return None
        warning = f"The GPUs of {developer} have cost {spent:,.2f} of this month's {budget:,.2f} {self._budgets.currency}; at the whole budget nothing new is deployed."
        logger.warning(warning)
        return warning

    async def _between(
        self,
        session: AsyncSession,
        since: datetime,
        until: datetime,
        developer: str | None = None,
    ) -> list[GpuIntervalRow]:
        return await self._divided(session, await queries.between(session, since, until, developer))

    async def _divided(
        self, session: AsyncSession, rows: Sequence[GpuIntervalRow]
    ) -> list[GpuIntervalRow]:
        """Divide what is still shared by its use so far. The rows are read only."""
        now, parts = self._clock.now(), dict[int, float]()
        for engine in {row.engine for row in rows if row.ended_at is None and row.engine}:
            parts |= parts_by_use(await queries.open_of_engine(session, engine), now)
        for row in rows:
            session.expunge(row)
            row.part = parts.get(row.id, row.part)
        return list(rows)

    def _by_developer(
        self, rows: Iterable[GpuIntervalRow], since: datetime, until: datetime
    ) -> list[DeveloperCost]:
        groups = _grouped(rows, lambda row: row.developer)
        found = [
            DeveloperCost(
                **_spending(own, since, until).model_dump(),
                developer=developer,
                budget=self._budgets.of(developer),
            )
            for developer, own in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.cost, one.developer))

    def _by_submission(
        self, rows: Iterable[GpuIntervalRow], since: datetime, until: datetime
    ) -> list[SubmissionCost]:
        groups = _grouped(rows, lambda row: row.submission_id)
        found = [
            self._submission(submission_id, own[0].developer, own, since, until)
            for submission_id, own in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.cost, one.submission_id))

    def _submission(
        self,
        submission_id: str,
        developer: str,
        rows: Iterable[GpuIntervalRow],
        since: datetime,
        until: datetime,
    ) -> SubmissionCost:
        rows = list(rows)
        return SubmissionCost(
            **_spending(rows, since, until).model_dump(),
            submission_id=submission_id,
            developer=developer,
            since=since,
            until=until,
            currency=self._budgets.currency,
            gpus_now=sum(row.gpu_count * row.replicas for row in rows if row.ended_at is None),
        )


def _spending(rows: Iterable[GpuIntervalRow], since: datetime, until: datetime) -> Spending:
    hours = [(row, _gpu_hours(row, since, until)) for row in rows]
    return Spending(
        gpu_hours=sum(spent for _, spent in hours),
        cost=sum(spent * row.gpu_hour_price for row, spent in hours),
    )


def _price_per_hour(row: GpuIntervalRow) -> float:
    return row.gpus * row.gpu_hour_price


def _gpu_hours(row: GpuIntervalRow, since: datetime, until: datetime) -> float:
    """Return the GPU hours, never negative, even if the clock was set back."""
    ended = min(row.ended_at or until, until)
    seconds = max(0.0, (ended - max(row.began_at, since)).total_seconds())
    return seconds / HOUR_S * row.gpus


def _month_of(at: datetime) -> datetime:
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _grouped(
    rows: Iterable[GpuIntervalRow], key: Callable[[GpuIntervalRow], str]
) -> dict[str, list[GpuIntervalRow]]:
    groups: defaultdict[str, list[GpuIntervalRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
