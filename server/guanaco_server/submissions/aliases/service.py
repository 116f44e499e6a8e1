"""Aliases of submissions: set, moved and taken away by their developer, and found by whoever names one.

A developer's own alias comes first. Among others' aliases, one that only one developer has is meant.
"""

from __future__ import annotations

from typing import overload

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.aliases import MAX_ALIASES, Alias, AliasName, read_alias
from guanaco.errors import AmbiguousAlias, InvalidInput, SubmissionNotFound
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.aliases import queries
from guanaco_server.submissions.visibility import visible_row

SET, REMOVE = "set alias", "remove alias"


class AliasService:
    def __init__(self, database: Database, clock: Clock, audit: AuditLog) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit

    async def set(self, account: Account, submission_id: str, name: str) -> Alias:
        """Have the name mean this submission from now on; whoever asks finds either the one before or this one.

        The row is locked, so that one that is deleted meanwhile gets no alias. InvalidInput beyond ``MAX_ALIASES``.
        """

        async def set_alias(session: AsyncSession) -> Alias:
            row = await visible_row(session, account, submission_id, is_locked=True)
            others = [
                one for one in await queries.of_submission(session, row.id) if one.name != name
            ]
            if len(others) >= MAX_ALIASES:
                raise InvalidInput(
                    f"{row.id} has {len(others)} aliases, which is the most that a submission may have.",
                    hint="Remove one first: `guanaco alias remove ALIAS`.",
                )
            now = self._clock.now()
            await queries.put(session, row.account_id, row.repo, name, row.id, now)
            alias = AliasName(row.repo, name)
            await self._audit.note(
                session, account, SET, f"{alias} of {row.developer}: {row.id}"[:256]
            )
            return Alias(
                alias=str(alias), submission_id=row.id, developer=row.developer, set_at=now
            )

        return await self._database.write_unit(set_alias)

    async def remove(self, account: Account, submission_id: str, name: str) -> None:
        """Take the name from this submission; SubmissionNotFound where it has none of that name."""

        async def remove(session: AsyncSession) -> None:
            row = await visible_row(session, account, submission_id)
            alias = AliasName(row.repo, name)
            if not await queries.drop(session, row.id, name):
                raise SubmissionNotFound(str(alias))
            await self._audit.note(
                session, account, REMOVE, f"{alias} of {row.developer}: {row.id}"[:256]
            )

        await self._database.write_unit(remove)

    async def list_own(self, account: Account) -> list[Alias]:
        """List the caller's aliases by name; every developer's for an admin."""
        own = None if account.role is Role.ADMIN else account.id
        async with self._database.read() as session:
            rows = await queries.list_aliases(session, own)
        return [
            Alias(
                alias=str(AliasName(repo, name)),
                submission_id=submission_id,
                developer=developer,
                set_at=set_at,
            )
            for repo, name, submission_id, developer, set_at in rows
        ]

    async def resolve(self, account: Account | None, named: str) -> str:
        """Return the submission's id that a name means to the caller: itself, if it is no alias. SubmissionNotFound, AmbiguousAlias."""
        if "@" not in named:
            return named
        async with self._database.read() as session:
            return await self.resolved(session, account, named)

    @overload
    async def resolved(self, session: AsyncSession, account: Account | None, named: str) -> str: ...

    @overload
    async def resolved(
        self, session: AsyncSession, account: Account | None, named: str | None
    ) -> str | None: ...

    async def resolved(
        self, session: AsyncSession, account: Account | None, named: str | None
    ) -> str | None:
        """Return the same within the caller's transaction; None for None."""
        if named is None or "@" not in named:
            return named
        alias = read_alias(named)
        found = await queries.named_by(session, alias.repo, alias.name) if alias else {}
        if account is not None and account.id in found:
            return found[account.id]
        if not found:
            raise SubmissionNotFound(named)
        if len(found) > 1:
            raise AmbiguousAlias(named)
        return next(iter(found.values()))
