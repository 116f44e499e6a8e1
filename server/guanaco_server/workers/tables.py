"""The workers that share the database, and the leases that they hold."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class WorkerRow(Table):
    """``heir`` is the survivor that is taking over what a silent worker left; ``claimed_at`` stays when that is done."""

    __tablename__ = "workers"

    executor_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    heir: Mapped[str | None] = mapped_column(String(128))
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class LeaseRow(Table):
    """A right that one worker at a time holds until ``expires_at``, unless it renews it."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    holder: Mapped[str] = mapped_column(String(128))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
