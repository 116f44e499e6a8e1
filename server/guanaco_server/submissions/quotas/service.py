"""Limits what each developer may use: runs of the pipeline an hour, submissions that are live or in progress, bytes of weights.

The artifacts of ended submissions are kept as long as there is room for them within the bytes. Runs take their bytes one after
the other when their weights are checked, so that two at the same time count each other.

A sweep counts once, as one run and one submission in progress, and as many live submissions as it needs model servers. Every check is made in the transaction that takes a place, which holds the developer's row: of two requests at the same
time the second counts the first. Admins have no limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import QuotaExceeded, StorageQuotaExceeded, TooManySubmissions
from guanaco.quotas import Quota, QuotaOverride, QuotaUse
from guanaco.submissions import IN_PROGRESS
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions import queries as submission_queries
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.quotas import queries
from guanaco_server.submissions.tables import QuotaRow, SubmissionRow

WINDOW = timedelta(hours=1)
LIVE = frozenset((*SERVED, *IN_PROGRESS))
SET_QUOTA = "set quota"


@dataclass(frozen=True)
class Limits:
    """0 is no limit."""

    per_hour: int
    live: int
    in_progress: int
    artifact_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            per_hour=settings.quota_per_hour,
            live=settings.quota_live,
            in_progress=settings.quota_in_progress,
            artifact_bytes=settings.quota_artifact_bytes,
        )

    def but(self, row: QuotaRow | None) -> Limits:
        """Return the same, with what an admin has set for one developer."""
        if row is None:
            return self
        own = {name: getattr(row, name) for name in QuotaOverride.model_fields}
        return Limits(
            **vars(self) | {name: value for name, value in own.items() if value is not None}
        )


@dataclass(frozen=True)
class EndedArtifacts:
    """The artifacts of a developer's ended submissions, with their bytes, the newest first; ``room_bytes`` of them may be kept."""

    room_bytes: int
    size_bytes: dict[str, int]


class QuotaService:
    """``defaults`` hold for developers for whom no admin has set anything."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        audit: AuditLog,
        defaults: Limits,
    ) -> None:
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._audit = audit
        self._defaults = defaults

    async def take(
        self, session: AsyncSession, account: Account, *, servers: int = 1, is_live: bool = False
    ) -> None:
        """Take the place of one more run, within the caller's transaction. ``is_live``: its submission counts already.

        ``servers`` are the model servers that a sweep needs, each of which counts as a live submission.

        Raises:
            TooManySubmissions: The hour's runs are used up; it knows when the next may begin.
            QuotaExceeded: There are as many submissions, or bytes, as there may be.
        """
        if account.role is Role.ADMIN:
            return
        limits = self._defaults.but(await queries.lock_quota(session, account.id))
        quota = await self._quota(session, account.id, account.name, limits)
        if quota.next_submission_at is not None:
            wait = quota.next_submission_at - self._clock.now()
            raise TooManySubmissions(limits.per_hour, wait.total_seconds())
        if quota.in_progress.left == 0:
            raise QuotaExceeded(
                f"You have {quota.in_progress.used} submissions in the queue and the pipeline, which is your limit.",
                hint="Submit again when one of them has ended; `guanaco quota` shows your limits.",
            )
        if not is_live:
            _require_live(quota.live, servers)
        if quota.artifact_bytes.left == 0:
            raise QuotaExceeded(
                f"Your submissions have {quota.artifact_bytes.used:,} bytes of weights, and your limit is {limits.artifact_bytes:,}.",
                hint="`guanaco teardown ID` makes room for another.",
            )
        now = self._clock.now()
        await queries.add_run_start(session, account.id, now, now - WINDOW)

    async def take_disk(self, submission_id: str, weight_bytes: int) -> EndedArtifacts | None:
        """Take the room of a submission's weights before they are fetched. Return what must leave for it; None without a limit.

        Raises:
            StorageQuotaExceeded: The developer's live submissions leave no room for them.
        """
        async with self._database.read() as session:
            row = await submission_queries.by_id(session, submission_id)
            if row is None or await self._accounts.role_of(row.account_id) is Role.ADMIN:
                return None

        async def take(session: AsyncSession) -> EndedArtifacts | None:
            row = await submission_queries.by_id_locked(session, submission_id)
            if row is None:
                return None
            await queries.lock_quota(session, row.account_id)
            room = await self._require_room(session, row.account_id, weight_bytes, row)
            row.weight_bytes = weight_bytes
            if room is None:
                return None
            ended = await queries.ended_artifacts(session, row.account_id, LIVE)
            return EndedArtifacts(room, ended)

        return await self._database.write_unit(take)

    async def require_room(self, account: Account, weight_bytes: int) -> None:
        """Check weights that were not submitted. Raise StorageQuotaExceeded if the developer has no room for them."""
        if account.role is Role.ADMIN:
            return
        async with self._database.read() as session:
            await self._require_room(session, account.id, weight_bytes, None)

    async def _require_room(
        self, session: AsyncSession, account_id: str, weight_bytes: int, but: SubmissionRow | None
    ) -> int | None:
        """Return the bytes that are left then; None without a limit."""
        limits = self._defaults.but(await queries.quota(session, account_id))
        if not limits.artifact_bytes:
            return None
        used = await queries.artifact_bytes(session, account_id, LIVE, but)
        if used + weight_bytes > limits.artifact_bytes:
            raise StorageQuotaExceeded(used, weight_bytes, limits.artifact_bytes)
        return limits.artifact_bytes - used - weight_bytes

    async def quota_of(self, account: Account) -> Quota:
        async with self._database.read() as session:
            limits = self._defaults.but(await queries.quota(session, account.id))
            if account.role is Role.ADMIN:
                limits = Limits(0, 0, 0, 0)
            return await self._quota(session, account.id, account.name, limits)

    async def quota_named(self, name: str) -> Quota:
        """Raise AccountNotFound where there is no such developer."""
        return await self.quota_of(await self._accounts.named(name))

    async def override_of(self, name: str) -> QuotaOverride:
        """Return what an admin has set for the developer. Raise AccountNotFound where there is none."""
        account = await self._accounts.named(name)
        async with self._database.read() as session:
            row = await queries.quota(session, account.id)
        if row is None:
            return QuotaOverride()
        return QuotaOverride(**{field: getattr(row, field) for field in QuotaOverride.model_fields})

    async def set(self, name: str, override: QuotaOverride, by: Account) -> Quota:
        """Set the developer's limits, replacing all of them."""
        account = await self._accounts.named(name)

        async def set_limits(session: AsyncSession) -> None:
            row = await queries.lock_quota(session, account.id)
            for field in QuotaOverride.model_fields:
                setattr(row, field, getattr(override, field))
            changes = override.model_dump(exclude_none=True)
            words = ", ".join(f"{field} {value}" for field, value in changes.items())
            await self._audit.note(session, by, SET_QUOTA, f"{name}: {words or 'as everybody'}")

        await self._database.write_unit(set_limits)
        return await self.quota_of(account)

    async def _quota(
        self, session: AsyncSession, account_id: str, name: str, limits: Limits
    ) -> Quota:
        starts = await queries.run_starts(session, account_id, self._clock.now() - WINDOW)
        return Quota(
            account=name,
            per_hour=_use(len(starts), limits.per_hour),
            live=_use(await queries.count_servers(session, account_id, LIVE), limits.live),
            in_progress=_use(
                await queries.count_own(session, account_id, IN_PROGRESS), limits.in_progress
            ),
            artifact_bytes=_use(
                await queries.artifact_bytes(session, account_id, LIVE, None),
                limits.artifact_bytes,
            ),
            next_submission_at=_next(starts, limits.per_hour),
        )


def _require_live(live: QuotaUse, servers: int) -> None:
    if live.left is None or servers <= live.left:
        return
    if live.left == 0:
        raise QuotaExceeded(
            f"You have {live.used} submissions that are live or in progress, which is your limit.",
            hint="`guanaco teardown ID` makes room for another.",
        )
    raise QuotaExceeded(
        f"The sweep needs {servers} model servers, and your limit leaves room for {live.left} more.",
        hint="Variants share a model server where dtype, quantization and token limits are the same; `guanaco quota` shows your limits.",
    )


def _use(used: int, limit: int) -> QuotaUse:
    return QuotaUse(used=used, limit=limit or None)


def _next(starts: list[datetime], per_hour: int) -> datetime | None:
    """Return when enough of the runs are an hour old for another to begin; None if it may begin now."""
    if not per_hour or len(starts) < per_hour:
        return None
    return starts[len(starts) - per_hour] + WINDOW
