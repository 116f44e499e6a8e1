"""What should be served, and where it is."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.recipes import Recipe
from guanaco.submissions import Quantization
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, Pydantic, UtcDateTime


class Phase(StrEnum):
    """``starting → ready ⇄ restarting``; the reconciler alone moves a published deployment."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"


class DeploymentRow(Table):
    """A row means that a model server should run; its absence, that none should."""

    __tablename__ = "deployments"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int]
    artifact_key: Mapped[str] = mapped_column(String(64))
    max_model_tokens: Mapped[int]
    quantization: Mapped[Quantization | None] = mapped_column(EnumText(Quantization))
    recipe: Mapped[Recipe | None] = mapped_column(Pydantic(Recipe))
    developer: Mapped[str] = mapped_column(String(64), default="")
    phase: Mapped[Phase] = mapped_column(EnumText(Phase))
    endpoint: Mapped[str | None] = mapped_column(String(255))
    restarts: Mapped[int] = mapped_column(default=0)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
