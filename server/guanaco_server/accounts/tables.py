"""Accounts and their API keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from guanaco.accounts import Role
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, UtcDateTime


class AccountRow(Table):
    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[Role] = mapped_column(EnumText(Role))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKeyRow(Table):
    """``secret_hash`` is the SHA-256 of a secret with 190 bits of entropy: no salt or slow hash is needed."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    secret_hash: Mapped[str] = mapped_column(String(64))
    may_choose_models: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    account: Mapped[AccountRow] = relationship(lazy="joined")


class AuditRow(Table):
    """An action for the audit log, kept for good; ``subject`` is never a user's own id."""

    __tablename__ = "audit"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    account: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(256))
