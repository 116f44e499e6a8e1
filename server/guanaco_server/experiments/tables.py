"""Experiments, and which conversations took part."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.experiments import ExperimentRequest, ExperimentState
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, Pydantic, UtcDateTime


class ExperimentRow(Table):
    """An experiment. Its ``rules`` may change while it is a draft."""

    __tablename__ = "experiments"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    rules: Mapped[ExperimentRequest] = mapped_column(Pydantic(ExperimentRequest))
    state: Mapped[ExperimentState] = mapped_column(EnumText(ExperimentState))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    stopped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ExposureRow(Table):
    """A conversation's variant, stored as long as the conversation. ``unit`` is the user, hashed."""

    __tablename__ = "experiment_exposures"
    __table_args__ = (Index("ix_experiment_exposures_experiment_variant", "experiment", "variant"),)

    conversation_id: Mapped[str] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True
    )
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"))
    variant: Mapped[str] = mapped_column(String(64))
    unit: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
