"""Tables of what was served in periods of five minutes, of alerts, and of the messages about them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.alerts import AlertMessageKind, AlertName, Severity
from guanaco.webhooks import DeliveryState
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, UtcDateTime

GrowingId = BigInteger().with_variant(Integer, "sqlite")


class ServiceCountRow(Table):
    """Counts how often something happened in the five minutes from ``at`` on, over all processes (observability/tally.py)."""

    __tablename__ = "service_counts"

    measure: Mapped[str] = mapped_column(String(32), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)


class AlertRow(Table):
    """An alert, which fires until ``ended_at``. ``calm_since`` is when the figures ceased to call for it."""

    __tablename__ = "alerts"
    __table_args__ = (
        Index(
            "ix_alerts_firing",
            "name",
            unique=True,
            postgresql_where=text("ended_at IS NULL"),
            sqlite_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True)
    name: Mapped[AlertName] = mapped_column(EnumText(AlertName, 32))
    severity: Mapped[Severity] = mapped_column(EnumText(Severity))
    sentence: Mapped[str]
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    calm_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AlertMessageRow(Table):
    """A message in the outbox. ``next_attempt_at`` is moved on before each try, so that one process at a time makes it."""

    __tablename__ = "alert_messages"
    __table_args__ = (Index("ix_alert_messages_state_next_attempt_at", "state", "next_attempt_at"),)

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True)
    alert_id: Mapped[int | None] = mapped_column(ForeignKey("alerts.id"))
    kind: Mapped[AlertMessageKind] = mapped_column(EnumText(AlertMessageKind))
    alert: Mapped[AlertName | None] = mapped_column(EnumText(AlertName, 32))
    body: Mapped[str]
    state: Mapped[DeliveryState] = mapped_column(EnumText(DeliveryState))
    attempts: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    next_attempt_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_attempt_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_result: Mapped[str | None] = mapped_column(String(200))
