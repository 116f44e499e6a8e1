"""Tables of the artifacts, and of when each was last needed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class ArtifactRow(Table):
    """``doomed_at`` says that a platform began to delete it then; ``size_bytes`` is 0 until it was measured."""

    __tablename__ = "artifacts"

    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    needed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    doomed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
