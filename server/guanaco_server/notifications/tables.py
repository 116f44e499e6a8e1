"""Webhooks, how far each has told of its submissions, and deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.webhooks import DeliveryState, WebhookEvent
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, UtcDateTime


class WebhookRow(Table):
    """An account has one webhook. Secrets are stored in plain text, because each delivery is signed with them."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), unique=True)
    url: Mapped[str]
    feedback_every: Mapped[int | None]
    secret: Mapped[str] = mapped_column(String(64))
    old_secret: Mapped[str | None] = mapped_column(String(64))
    old_secret_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class WebhookProgressRow(Table):
    """The event and the rating of a submission up to which a webhook's deliveries are written."""

    __tablename__ = "webhook_progress"

    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"), primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    event_seq: Mapped[int]
    feedback_count: Mapped[int]


class WebhookDeliveryRow(Table):
    """A delivery in the outbox. Its id is made of what it tells, so that writing it twice makes one.

    ``claim`` and ``claimed_until`` are the lease of the try that is under way, freed by time if its process dies.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_state_next_attempt_at", "state", "next_attempt_at"),
        Index("ix_webhook_deliveries_webhook_id_created_at", "webhook_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    submission_id: Mapped[str | None] = mapped_column(String(128))
    event: Mapped[WebhookEvent] = mapped_column(EnumText(WebhookEvent))
    body: Mapped[str]
    state: Mapped[DeliveryState] = mapped_column(EnumText(DeliveryState))
    attempts: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    next_attempt_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_attempt_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_result: Mapped[str | None] = mapped_column(String(200))
    claim: Mapped[str | None] = mapped_column(String(32))
    claimed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
