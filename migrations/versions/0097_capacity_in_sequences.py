"""Counts the measured capacity of a model server in sequences, as vLLM does.

It was counted in replies, and a reply that is the best of several has as many sequences. The version before takes the new number for replies: during a
roll-out it sends a model server whose submissions all have best_of as many replies more, as it does already where a submission without best_of shares it.
What it measures itself counts replies, and is less than there is until the next check.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "0097"
down_revision = "0096"

DEPLOYMENTS = sa.table(
    "deployments", sa.column("submission_id", sa.String), sa.column("capacity", sa.Integer)
)
SUBMISSIONS = sa.table(
    "submissions",
    sa.column("id", sa.String),
    sa.column("kind", sa.String),
    sa.column("params", JSON),
)
MARK = "@"  # between a submission and the run of its version beside


def upgrade() -> None:
    connection = op.get_bind()
    measured = connection.execute(
        sa.select(DEPLOYMENTS).where(DEPLOYMENTS.c.capacity.is_not(None))
    ).all()
    for key, capacity in measured:
        params = connection.scalar(
            sa.select(SUBMISSIONS.c.params).where(
                SUBMISSIONS.c.id == key.partition(MARK)[0], SUBMISSIONS.c.kind == "chat"
            )
        )
        candidates = _candidates(params or {})
        if candidates > 1:
            connection.execute(
                sa.update(DEPLOYMENTS)
                .where(DEPLOYMENTS.c.submission_id == key)
                .values(capacity=capacity * candidates)
            )


def _candidates(params: dict[str, float]) -> int:
    return int(params.get("best_of", 1)) if params.get("temperature", 1.0) > 0 else 1
