"""Reads what an operator asks for: which alerts fire, what they compare, and the service level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.alerts import (
    Alert,
    AlertCheck,
    AlertMessage,
    AlertMessageKind,
    AlertName,
    Alerts,
    ServiceLevel,
)
from guanaco.webhooks import DeliveryState
from guanaco_server.alerts import queries
from guanaco_server.alerts.figures import FigureReader
from guanaco_server.alerts.objective import WINDOWS, service_level
from guanaco_server.alerts.rules import no_worker
from guanaco_server.alerts.slack import test_body
from guanaco_server.alerts.tables import AlertMessageRow, AlertRow
from guanaco_server.alerts.watch import AlertWatch
from guanaco_server.database.database import Database
from guanaco_server.observability.tally import ERRORS, RATINGS, TURNS
from guanaco_server.runtime.clock import Clock
from guanaco_server.workers.absence import WorkerAbsence, WorkerAbsences

SHOWN_ENDED = timedelta(days=7)
SHOWN_MESSAGES = 20


@dataclass(frozen=True)
class Activity:
    """Counts of a slot of time: whole replies, replies that failed, ratings."""

    turns: int
    errors: int
    ratings: int


class AlertService:
    """``wake`` wakes the loop of this process, if it runs one."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        figures: FigureReader,
        watch: AlertWatch,
        absences: WorkerAbsences,
        *,
        target: float,
        link_base: str,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._figures = figures
        self._watch = watch
        self._absences = absences
        self._target = target
        self._link_base = link_base
        self._wake = wake

    async def read(self) -> Alerts:
        checks, absence = await self._watch.checks(), await self._absences.find()
        async with self._database.read() as session:
            firing = await queries.firing(session)
            ended = await queries.ended_since(session, self._clock.now() - SHOWN_ENDED)
            messages = await queries.newest_messages(session, SHOWN_MESSAGES)
        shown = [_alert(row) for row in firing]
        return Alerts(
            firing=shown if absence is None else [*self._unwritten(absence, checks, shown), *shown],
            ended=[_alert(row) for row in ended],
            checks=[*checks, no_worker(absence)],
            messages=[_message(row) for row in messages],
        )

    async def find_absence(self) -> WorkerAbsence | None:
        """Return since when no worker has been heard of; None while there is one."""
        return await self._absences.find()

    def _unwritten(
        self, absence: WorkerAbsence, checks: Sequence[AlertCheck], firing: Sequence[Alert]
    ) -> list[Alert]:
        """Return the alerts that a worker would have written: that there is none, and what the figures call for now."""
        written = {one.name for one in firing}
        now = self._clock.now()
        missed = [
            Alert(
                name=one.name,
                severity=one.severity,
                sentence=one.sentence,
                began_at=now,
                ended_at=None,
            )
            for one in checks
            if one.is_firing and one.name not in written
        ]
        check = no_worker(absence)
        return [
            Alert(
                name=AlertName.NO_WORKER,
                severity=check.severity,
                sentence=check.sentence,
                began_at=absence.since,
                ended_at=None,
            ),
            *missed,
        ]

    async def activity(self, edges: Sequence[datetime]) -> list[Activity]:
        """Return what happened in each slot, from one edge to the next; 30 days back there are counts."""
        measures = (TURNS, ERRORS, RATINGS)
        async with self._database.read(may_be_stale=True) as session:
            found = await queries.counts_by_slot(session, edges, measures)
        slots = range(len(edges) - 1)
        return [Activity(*(found.get((slot, name), 0) for name in measures)) for slot in slots]

    async def test(self) -> AlertMessage:
        """Write a test message. Its result is read with the alerts."""
        now = self._clock.now()
        row = AlertMessageRow(
            kind=AlertMessageKind.TEST,
            body=test_body(now, self._link_base),
            state=DeliveryState.PENDING,
            attempts=0,
            created_at=now,
            next_attempt_at=now,
        )

        async def add(session: AsyncSession) -> None:
            session.add(row)

        await self._database.write_unit(add)
        self._wake()
        return _message(row)

    async def service_level(self) -> ServiceLevel:
        now = self._clock.now()
        recent = await self._figures.replies(now, tuple(WINDOWS.values()))
        return service_level(recent, self._target, now)


def _alert(row: AlertRow) -> Alert:
    return Alert(
        name=row.name,
        severity=row.severity,
        sentence=row.sentence,
        began_at=row.began_at,
        ended_at=row.ended_at,
    )


def _message(row: AlertMessageRow) -> AlertMessage:
    is_pending = row.state is DeliveryState.PENDING
    return AlertMessage(
        id=row.id,
        kind=row.kind,
        alert=row.alert,
        state=row.state,
        attempts=row.attempts,
        created_at=row.created_at,
        last_attempt_at=row.last_attempt_at,
        next_attempt_at=row.next_attempt_at if is_pending else None,
        last_result=row.last_result,
    )
