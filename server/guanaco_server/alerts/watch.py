"""Compares the figures each minute, and keeps which alerts fire. Alerts and the messages about them are one transaction.

the figures call for it → fires, and a message is written    (once: one alert of a name fires at a time)
they do not any more    → calm; the alert still fires, so that one on the border does not come and go
calm for CALM           → ended, and a message is written
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.alerts import AlertCheck, AlertMessageKind
from guanaco.webhooks import DeliveryState
from guanaco_server.alerts import queries
from guanaco_server.alerts.figures import FigureReader
from guanaco_server.alerts.objective import MONTH
from guanaco_server.alerts.rules import PERIODS, AlertPolicy, judge
from guanaco_server.alerts.slack import alert_body
from guanaco_server.alerts.tables import AlertMessageRow, AlertRow
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock

CALM = timedelta(minutes=10)
KEPT = timedelta(days=30)  # of alerts and messages


class AlertWatch:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        figures: FigureReader,
        policy: AlertPolicy,
        *,
        has_receiver: bool,
        link_base: str,
    ) -> None:
        """Keep alerts; write messages about them only if there is a receiver."""
        self._database = database
        self._clock = clock
        self._figures = figures
        self._policy = policy
        self._has_receiver = has_receiver
        self._link_base = link_base

    async def checks(self) -> list[AlertCheck]:
        """Compare the figures now, and change nothing."""
        return judge(await self._figures.read(self._clock.now(), PERIODS), self._policy)

    async def check(self) -> None:
        """Compare the figures, and begin or end alerts."""
        checks = await self.checks()
        await self._database.write_unit(
            lambda session: self._keep(session, checks, self._clock.now())
        )

    async def forget(self) -> None:
        """Delete what is too old for anybody to ask for."""
        now = self._clock.now()

        async def forget(session: AsyncSession) -> None:
            await queries.forget_counts(session, now - MONTH - timedelta(hours=1))
            await queries.forget_alerts(session, now - KEPT)

        await self._database.write_unit(forget)

    async def _keep(
        self, session: AsyncSession, checks: Sequence[AlertCheck], now: datetime
    ) -> None:
        firing = {row.name: row for row in await queries.firing(session)}
        for check in checks:
            row = firing.get(check.name)
            if check.is_firing:
                await self._fire(session, row, check, now)
            elif row is not None:
                self._note_calm(session, row, check, now)

    async def _fire(
        self, session: AsyncSession, row: AlertRow | None, check: AlertCheck, now: datetime
    ) -> None:
        if row is not None:
            row.calm_since, row.sentence = None, check.sentence
            return
        row = AlertRow(
            name=check.name, severity=check.severity, sentence=check.sentence, began_at=now
        )
        session.add(row)
        await session.flush()
        self._write(session, AlertMessageKind.FIRING, row, check, now)

    def _note_calm(
        self, session: AsyncSession, row: AlertRow, check: AlertCheck, now: datetime
    ) -> None:
        row.calm_since = row.calm_since or now
        if now - row.calm_since >= CALM:
            row.ended_at = now
            self._write(session, AlertMessageKind.RESOLVED, row, check, now)

    def _write(
        self,
        session: AsyncSession,
        kind: AlertMessageKind,
        row: AlertRow,
        check: AlertCheck,
        now: datetime,
    ) -> None:
        if not self._has_receiver:
            return
        body = alert_body(
            kind, row.name, row.severity, check.sentence, row.began_at, now, self._link_base
        )
        session.add(
            AlertMessageRow(
                alert_id=row.id,
                kind=kind,
                alert=row.name,
                body=body,
                state=DeliveryState.PENDING,
                created_at=now,
                next_attempt_at=now,
            )
        )
