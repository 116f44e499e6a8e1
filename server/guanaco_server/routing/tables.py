"""The tables of what repeatable assignments were made of."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import Pydantic, UtcDateTime
from guanaco_server.routing.snapshot import Snapshot


class SnapshotRow(Table):
    """Only of competitions with a seed, and only those by which a conversation was assigned; ``used_at`` to the hour."""

    __tablename__ = "assignment_snapshots"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    snapshot: Mapped[Snapshot] = mapped_column(Pydantic(Snapshot))
    used_at: Mapped[datetime] = mapped_column("created_at", UtcDateTime, index=True)
