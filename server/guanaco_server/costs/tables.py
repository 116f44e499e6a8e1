"""Tables of which GPUs were held when, for whom, and at which price."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class GpuIntervalRow(Table):
    """Open as long as ``ended_at`` is none. ``server`` is the key of a version beside the one that serves. The price stays as it was, whatever the price table says later.

    ``part`` is the share of the cost that this submission pays, where several share the GPUs; None for all of it. For such an ``engine``, ``tokens`` are the submission's own, weighted, and ``busy_s`` is the time in which anybody used it.
    """

    __tablename__ = "gpu_intervals"
    __table_args__ = (
        Index("ix_gpu_intervals_submission_id", "submission_id"),
        Index("ix_gpu_intervals_ended_at", "ended_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"))
    developer: Mapped[str] = mapped_column(String(64))
    gpu_type: Mapped[str] = mapped_column(String(32))
    server: Mapped[str | None] = mapped_column(String(160))
    gpu_count: Mapped[int]
    replicas: Mapped[int]
    gpu_hour_price: Mapped[float]
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    part: Mapped[float | None]
    engine: Mapped[str | None] = mapped_column(String(160))
    tokens: Mapped[float | None]
    busy_s: Mapped[float | None]

    @property
    def gpus(self) -> float:
        """The GPUs that it pays for."""
        whole = self.gpu_count * self.replicas
        return whole if self.part is None else whole * self.part

    def next_interval(self, at: datetime, part: float | None) -> GpuIntervalRow:
        """Return the interval that follows, with another part."""
        return GpuIntervalRow(
            submission_id=self.submission_id,
            server=self.server,
            developer=self.developer,
            gpu_type=self.gpu_type,
            gpu_count=self.gpu_count,
            replicas=self.replicas,
            gpu_hour_price=self.gpu_hour_price,
            began_at=at,
            part=part,
            engine=self.engine,
        )
