"""Runs migrations on the connection, and inside the transaction, that the caller opened.

``guanaco_server.database.migrations`` is that caller for a platform, ``scripts/new-migration`` for a developer.
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON, TypeDecorator


def spell(kind: str, item: Any, _autogen: Any) -> str | Literal[False]:
    """Write down a column's type as the plain type, so that old migrations depend on none of our code."""
    if kind != "type" or not isinstance(item, JSON | TypeDecorator):
        return False
    plain = item.impl if isinstance(item, TypeDecorator) else item
    return "JSON" if isinstance(plain, JSON) else f"sa.{plain!r}"


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    render_as_batch=True,  # SQLite can alter little: batches copy the table where they must
    render_item=spell,
)
with context.begin_transaction():
    context.run_migrations()
