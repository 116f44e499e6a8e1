"""Orders to stop a reply of the chat page that another process writes. The version before does not look for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0059"
down_revision = "0058"


def upgrade() -> None:
    op.add_column("web_chats", sa.Column("stopped_turn", sa.String(length=64)))
