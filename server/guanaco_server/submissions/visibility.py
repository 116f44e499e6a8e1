"""Lets its developer and admins see a submission, and notes what an admin does with another's."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import SubmissionNotFound
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.submissions import queries
from guanaco_server.submissions.tables import SubmissionRow


async def visible_row(
    session: AsyncSession, account: Account, submission_id: str, is_locked: bool = False
) -> SubmissionRow:
    """SubmissionNotFound for another developer's, and for one that was deleted."""
    read = queries.by_id_locked if is_locked else queries.by_id
    row = await read(session, submission_id)
    is_others = row is not None and account.role is not Role.ADMIN and row.account_id != account.id
    if row is None or is_others or row.deleted_at is not None:
        raise SubmissionNotFound(submission_id)
    return row


async def note_others(
    audit: AuditLog, session: AsyncSession, account: Account, row: SubmissionRow, what: str
) -> None:
    """Note in the audit log what an admin does with another's submission."""
    if row.account_id != account.id:
        await audit.note(session, account, what, row.id)
