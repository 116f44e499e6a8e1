"""Adds what a redeploy makes, which its submission says once that version serves; mends what redeploys that did not take over have left.

The version before writes it into the submission at once. A worker of it that goes on with a redeploy of this version serves the
artifact that serves already: a redeploy that promotes an adapter ends without having merged it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0093"
down_revision = "0092"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MEND = """
UPDATE submissions
SET artifact_key = (SELECT d.artifact_key FROM deployments d WHERE d.submission_id = submissions.id),
    is_promoted = false, merged_because = NULL
WHERE base_repo IS NOT NULL AND status IN ('deployed', 'inactive')
  AND EXISTS (SELECT 1 FROM deployments d WHERE d.submission_id = submissions.id AND d.base_key <> d.artifact_key)
  AND NOT EXISTS (
      SELECT 1 FROM rollouts r
      WHERE r.submission_id = submissions.id AND r.phase NOT IN ('done', 'failed', 'cancelled')
  )
"""


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("made", JSON))
    op.add_column(
        "rollouts", sa.Column("promotes", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute(MEND)
