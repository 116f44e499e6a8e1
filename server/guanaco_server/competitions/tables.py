"""Competitions."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.competitions import CompetitionRequest
from guanaco_server.database.tables import Table
from guanaco_server.database.types import Pydantic, UtcDateTime


class CompetitionRow(Table):
    """A competition; ``rules`` is what an admin wrote. A frozen competition does not change."""

    __tablename__ = "competitions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    rules: Mapped[CompetitionRequest] = mapped_column(Pydantic(CompetitionRequest))
    frozen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
