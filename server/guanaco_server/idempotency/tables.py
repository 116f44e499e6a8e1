"""Requests with an Idempotency-Key, and their sealed answers."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class IdempotentRequestRow(Table):
    """``token`` and ``claimed_until`` are the lease of the process that answers it now; ``answer`` is there once it has.

    The key and the request are stored as hashes. The answer can be opened only with both of them (service.py).
    """

    __tablename__ = "idempotent_requests"

    account_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    key_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    conversation_id: Mapped[str | None] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    token: Mapped[str | None] = mapped_column(String(32))
    claimed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
