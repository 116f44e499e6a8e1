"""Accounts, submissions, deployments, conversations and feedback."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("name", name="uq_accounts_name"),
    )
    op.create_table(
        "submission_numbers",
        sa.Column("slug", sa.String(length=96), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("slug", name="pk_submission_numbers"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_api_keys_account_id_accounts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_account_id", "api_keys", ["account_id"])
    op.create_table(
        "submissions",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("developer", sa.String(length=64), nullable=False),
        sa.Column("repo", sa.String(length=193), nullable=False),
        sa.Column("revision", sa.String(length=128)),
        sa.Column("commit", sa.String(length=64)),
        sa.Column("name", sa.String(length=193), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("failure", JSON),
        sa.Column("params", JSON, nullable=False),
        sa.Column("formatter", JSON, nullable=False),
        sa.Column("architecture", sa.String(length=128)),
        sa.Column("parameter_count", sa.BigInteger()),
        sa.Column("weight_bytes", sa.BigInteger()),
        sa.Column("artifact_key", sa.String(length=64)),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128)),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_submissions_account_id_accounts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_submissions"),
        sa.UniqueConstraint(
            "account_id", "idempotency_key", name="uq_submissions_account_id_idempotency_key"
        ),
    )
    op.create_index(
        "ix_submissions_account_id_created_at", "submissions", ["account_id", "created_at"]
    )
    op.create_index("ix_submissions_status", "submissions", ["status"])
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("user_id", sa.String(length=128), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=False),
        sa.Column("bot", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("turn_token", sa.String(length=32)),
        sa.Column("turn_until", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_conversations_account_id_accounts"
        ),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["submissions.id"], name="fk_conversations_submission_id_submissions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_account_id", "conversations", ["account_id"])
    op.create_index("ix_conversations_submission_id", "conversations", ["submission_id"])
    op.create_index("ix_conversations_user_id", "conversations", ["user_id"])
    op.create_table(
        "deployments",
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("artifact_key", sa.String(length=64), nullable=False),
        sa.Column("max_model_tokens", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("endpoint", sa.String(length=255)),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["submissions.id"], name="fk_deployments_submission_id_submissions"
        ),
        sa.PrimaryKeyConstraint("submission_id", name="pk_deployments"),
    )
    op.create_table(
        "stage_runs",
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("outcome", sa.String(length=16)),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["submissions.id"], name="fk_stage_runs_submission_id_submissions"
        ),
        sa.PrimaryKeyConstraint("submission_id", "run", "stage", name="pk_stage_runs"),
    )
    op.create_table(
        "stress_reports",
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("report", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name="fk_stress_reports_submission_id_submissions",
        ),
        sa.PrimaryKeyConstraint("submission_id", "run", name="pk_stress_reports"),
    )
    op.create_table(
        "submission_events",
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16)),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name="fk_submission_events_submission_id_submissions",
        ),
        sa.PrimaryKeyConstraint("submission_id", "seq", name="pk_submission_events"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("user_id", sa.String(length=128), nullable=False),
        sa.Column("bot_name", sa.String(length=64), nullable=False),
        sa.Column("thumbs_up", sa.Boolean(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_feedback_conversation_id_conversations",
        ),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["submissions.id"], name="fk_feedback_submission_id_submissions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        sa.UniqueConstraint("conversation_id", name="uq_feedback_conversation_id"),
    )
    op.create_index(
        "ix_feedback_submission_id_created_at_id", "feedback", ["submission_id", "created_at", "id"]
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sender", sa.String(length=16), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_deleted", sa.Boolean(), nullable=False),
        sa.Column("finish_reason", sa.String(length=32)),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("ttft_ms", sa.Double()),
        sa.Column("total_ms", sa.Double()),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_messages_conversation_id_conversations",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_messages"),
        sa.UniqueConstraint(
            "conversation_id", "position", name="uq_messages_conversation_id_position"
        ),
    )
