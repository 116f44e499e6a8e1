"""Adds what sequences that hold at every look need: first votes, conversations of canaries, settled claims.

The version before writes none of it. Conversations that its gateways answer are in no canary's comparison; a vote that it counts and whose
rating was changed counts as last rated until that user rates again. Users who have changed a vote before are counted again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0082"
down_revision = "0076"


def upgrade() -> None:
    _canaries()
    _first_votes()
    op.create_table(
        "board_claims",
        sa.Column("competition", sa.String(64), nullable=False),
        sa.Column("claim", sa.String(64), nullable=False),
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint(
            "competition", "claim", "submission_id", name=op.f("pk_board_claims")
        ),
    )
    op.create_index("ix_board_claims_at", "board_claims", ["at"])


def _canaries() -> None:
    op.create_table(
        "canary_conversations",
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("is_new", sa.Boolean(), nullable=False),
        sa.Column("has_failed", sa.Boolean(), nullable=False),
        sa.Column("first_bucket", sa.Integer()),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name=op.f("fk_canary_conversations_submission_id_submissions"),
        ),
        sa.PrimaryKeyConstraint(
            "submission_id", "run", "conversation_id", name=op.f("pk_canary_conversations")
        ),
    )


def _first_votes() -> None:
    op.add_column("score_votes", sa.Column("first_up", sa.Boolean()))
    for name in ("turned_up", "turned_down"):
        op.add_column(
            "scores", sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
        )
    # A user whose ratings of a submission differ, or who changed one, is counted again.
    op.execute(
        """
        INSERT INTO score_corrections (user_key, submission_id, competition, slot)
        SELECT account_id || '/' || user_id, submission_id, competition, 0
        FROM feedback
        GROUP BY account_id, user_id, submission_id, competition
        HAVING MIN(CASE WHEN thumbs_up THEN 1 ELSE 0 END) < MAX(CASE WHEN thumbs_up THEN 1 ELSE 0 END)
            OR COUNT(changed_at) > 0
        """
    )
