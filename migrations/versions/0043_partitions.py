"""Partitions for messages, ratings and copies on PostgreSQL, by ranges of ids; periods.

Nothing is copied or read: each table becomes the default partition of a new one of its name, which takes milliseconds at
any size. The version before goes on as it was: its ids have no period, so its rows are of the default partition, and
its ON CONFLICT clauses name the partition key. PostgreSQL checks the constraint on the default partition later, while
others write (partitions/service.py).

A copy no longer refers to its rating by a foreign key: a rating's id alone is not unique over partitions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COPY_TO_RATING = "fk_feedback_copies_feedback_id_feedback"
TABLES = (("messages", "conversation_id", "conv_"), ("feedback", "conversation_id", "conv_"), ("feedback_copies", "feedback_id", "fb_"))  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "periods",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("competition", sa.String(length=64), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dropped_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("number", name="pk_periods"),
    )
    op.create_index("ix_periods_competition_ends_at", "periods", ["competition", "ends_at"])
    if op.get_bind().dialect.name == "sqlite":
        _drop_reference_on_sqlite()
        return
    op.execute(
        "LOCK TABLE submissions, conversations IN SHARE ROW EXCLUSIVE MODE"
    )  # first, as turns do
    op.drop_constraint(COPY_TO_RATING, "feedback_copies", type_="foreignkey")
    for table, key, kind in TABLES:
        _partition(table, key, kind)
    op.execute("ALTER SEQUENCE feedback_copies_number_seq OWNED BY feedback_copies.number")


def _drop_reference_on_sqlite() -> None:
    """Copy the table, and the highest number that was ever given: none is given twice."""
    bind = op.get_bind()
    last = bind.scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'feedback_copies'"))
    with op.batch_alter_table(
        "feedback_copies", table_kwargs={"sqlite_autoincrement": True}
    ) as copies:
        copies.drop_constraint(COPY_TO_RATING, type_="foreignkey")
    if last is not None:
        bind.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'feedback_copies'"))
        bind.execute(
            sa.text("INSERT INTO sqlite_sequence VALUES ('feedback_copies', :last)"), {"last": last}
        )


def _partition(table: str, key: str, kind: str) -> None:
    bind = op.get_bind()
    constraints = bind.execute(
        sa.text(
            "SELECT conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = to_regclass(:table) AND contype IN ('p', 'u', 'f')"
        ),
        {"table": table},
    ).all()
    named = {name for name, _, _ in constraints}
    indexes = [
        (name, definition)
        for name, definition in bind.execute(
            sa.text(
                "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = :table AND schemaname = current_schema()"
            ),
            {"table": table},
        )
        if name not in named
    ]
    before = f"{table}_before"
    op.execute(f"ALTER TABLE {table} RENAME TO {before}")
    for name, kind_of, _ in constraints:
        if kind_of != "f":  # only these have an index, whose name must be free
            op.execute(f'ALTER TABLE {before} RENAME CONSTRAINT "{name}" TO "{name}_before"')
    for name, _ in indexes:
        op.execute(f'ALTER INDEX "{name}" RENAME TO "{name}_before"')
    op.execute(
        f"ALTER TABLE {before} ADD CONSTRAINT ck_{before}_has_no_period"
        f" CHECK ({key} < '{kind}00000000' OR {key} >= '{kind}00000001') NOT VALID"
    )
    op.execute(
        f"CREATE TABLE {table} (LIKE {before} INCLUDING DEFAULTS) PARTITION BY RANGE ({key})"
    )
    for name, kind_of, definition in constraints:
        if kind_of != "p":
            op.execute(f'ALTER TABLE {table} ADD CONSTRAINT "{name}" {definition}')
    for _, definition in indexes:
        op.execute(definition)
    op.execute(f"ALTER TABLE {table} ATTACH PARTITION {before} DEFAULT")
