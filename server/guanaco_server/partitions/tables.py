"""The periods that conversations are stored by."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class PeriodRow(Table):
    """A competition's conversations that begin from ``starts_at`` until before ``ends_at`` are stored in partitions of their own.

    A row stays when its partitions are dropped, so that no number is given twice. SQLite has no rows here.
    """

    __tablename__ = "periods"
    __table_args__ = (Index("ix_periods_competition_ends_at", "competition", "ends_at"),)

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    competition: Mapped[str] = mapped_column(String(64))
    starts_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)
    dropped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
