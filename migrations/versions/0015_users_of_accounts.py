"""A user is one of an account's: votes, visits and pseudonyms; and indexes for what waits and for old ratings."""

# ruff: noqa: S608 - what is put into statements are constants of this file

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

ID = sa.String(length=64)
SUBMISSION = sa.String(length=128)
USER_KEY = sa.String(length=161)

# If users of several accounts share an id, nobody can say any more whose vote was counted.
OWN_IDS = (
    "SELECT user_id, MIN(account_id) AS account_id FROM conversations"
    " GROUP BY user_id HAVING MIN(account_id) = MAX(account_id)"
)
SHARED_IDS = (
    "SELECT user_id FROM conversations GROUP BY user_id HAVING MIN(account_id) <> MAX(account_id)"
)


def upgrade() -> None:
    name_users_by_account()
    count_anew()
    count_ratings()
    replace_indexes()
    op.execute("UPDATE feedback SET anonymized_by = 0")  # for other pseudonyms


def name_users_by_account() -> None:
    for table in ("score_conversations", "score_votes", "score_visits"):
        op.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")
        op.drop_table(table)
    create_tables()
    op.execute(
        "INSERT INTO score_conversations (conversation_id, submission_id, competition, user_key, tally,"
        " first_day, second_day) SELECT old.conversation_id, old.submission_id, old.competition,"
        " conversations.account_id || '/' || conversations.user_id, old.tally, old.first_day, old.second_day"
        " FROM old_score_conversations old JOIN conversations ON conversations.id = old.conversation_id"
    )
    for table, columns in (
        ("score_votes", "thumbs_up"),
        ("score_visits", "first_day, has_returned"),
    ):
        op.execute(
            f"INSERT INTO {table} (user_key, competition, submission_id, {columns})"
            f" SELECT owners.account_id || '/' || old.user_id, old.competition, old.submission_id, {columns}"
            f" FROM old_{table} old JOIN ({OWN_IDS}) owners ON owners.user_id = old.user_id"
        )
    for table in ("score_conversations", "score_votes", "score_visits"):
        op.drop_table(f"old_{table}")


def create_tables() -> None:
    op.create_table(
        "score_conversations",
        sa.Column("conversation_id", ID, nullable=False),
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("competition", ID, nullable=False),
        sa.Column("user_key", USER_KEY, nullable=False),
        sa.Column("tally", sa.String(), nullable=False),
        sa.Column("first_day", sa.Integer()),
        sa.Column("second_day", sa.Integer()),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_score_conversations"),
    )
    op.create_index(
        "ix_score_conversations_submission_id", "score_conversations", ["submission_id"]
    )
    op.create_index(
        "ix_score_conversations_user_key", "score_conversations", ["user_key", "submission_id"]
    )
    for table, columns in {
        "score_votes": [sa.Column("thumbs_up", sa.Boolean(), nullable=False)],
        "score_visits": [
            sa.Column("first_day", sa.Integer(), nullable=False),
            sa.Column("has_returned", sa.Boolean(), nullable=False),
        ],
    }.items():
        op.create_table(
            table,
            sa.Column("user_key", USER_KEY, nullable=False),
            sa.Column("competition", ID, nullable=False),
            sa.Column("submission_id", SUBMISSION, nullable=False),
            *columns,
            sa.PrimaryKeyConstraint("user_key", "competition", "submission_id", name=f"pk_{table}"),
        )
        op.create_index(f"ix_{table}_submission_id", table, ["submission_id"])


def count_anew() -> None:
    """Have the scorekeeper count again whoever talked to such users, and where the rules of bursts and windows have changed."""
    op.execute(
        "INSERT INTO score_recounts (submission_id)"
        f" SELECT submission_id FROM conversations WHERE user_id IN ({SHARED_IDS})"
        " UNION SELECT submission_id FROM score_slots WHERE ratings > 30"
        " UNION SELECT submission_id FROM scores WHERE competition <> 'open'"
        " EXCEPT SELECT submission_id FROM score_recounts"
    )


def count_ratings() -> None:
    op.add_column("scores", sa.Column("rated", sa.Integer(), nullable=False, server_default="0"))
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    rated = "json_extract(tally, '$.rated')" if is_sqlite else "(tally::json ->> 'rated')::integer"
    op.execute(f"UPDATE scores SET rated = COALESCE({rated}, 0)")


def replace_indexes() -> None:
    """Replace two indexes: what waits is counted oldest first, and a minute needs fewer ratings to be looked at."""
    op.drop_index("ix_feedback_uncounted", "feedback")
    uncounted, large = sa.text("NOT is_counted"), sa.text("ratings > 30")
    op.create_index(
        "ix_feedback_uncounted",
        "feedback",
        ["created_at"],
        postgresql_where=uncounted,
        sqlite_where=uncounted,
    )
    op.create_index("ix_feedback_competition_created_at", "feedback", ["competition", "created_at"])
    op.drop_index("ix_score_slots_large", "score_slots")
    op.create_index(
        "ix_score_slots_large", "score_slots", ["slot"], postgresql_where=large, sqlite_where=large
    )
