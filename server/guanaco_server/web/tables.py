"""Tables of the pages: who is signed in, and who chats."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class SessionRow(Table):
    """A browser that showed an API key. ``id`` is the SHA-256 of its cookie: 256 random bits, so no salt is needed."""

    __tablename__ = "web_sessions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class VisitorRow(Table):
    """A beta user who agreed to chat. ``id`` is the SHA-256 of the visitor's cookie; nothing else is known of them."""

    __tablename__ = "web_visitors"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    consented_at: Mapped[datetime] = mapped_column(UtcDateTime)


class VisitorChatRow(Table):
    """A visitor's conversation, and how they rated it on the chat page. ``stopped_turn`` is the turn, as the page named it, whose reply was last ordered to stop."""

    __tablename__ = "web_chats"
    __table_args__ = (Index("ix_web_chats_visitor_id_created_at", "visitor_id", "created_at"),)

    conversation_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    visitor_id: Mapped[str] = mapped_column(ForeignKey("web_visitors.id"))
    bot_name: Mapped[str] = mapped_column(String(64))
    thumbs_up: Mapped[bool | None]
    stopped_turn: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
