"""Sweeps: variants of one repo, entered in one transaction and shown together.

The pipeline works on one variant first; the others follow it once it serves, and use its commit, its artifact and its
engine (pipeline/sweep_order.py). What is done with a sweep is done with each of its submissions that it applies to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence

from pydantic import SecretStr
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import IdempotencyConflict, IllegalTransition, SweepNotFound
from guanaco.submissions import IN_PROGRESS, Status, Submission
from guanaco.sweeps import Sweep, SweepRequest, engines_of
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import queries as submission_queries
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.quotas import queries as quota_queries
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.reading import read_submission
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.service import SubmissionService, request_hash, slug_of
from guanaco_server.submissions.sweeps import queries
from guanaco_server.submissions.tables import SubmissionRow, SweepRow

Change = Callable[[Account, str], Awaitable[Submission]]


class SweepService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        quotas: QuotaService,
        submissions: SubmissionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._changes = changes
        self._quotas = quotas
        self._submissions = submissions

    async def submit(
        self,
        account: Account,
        request: SweepRequest,
        idempotency_key: str | None,
        hub_token: SecretStr | None = None,
    ) -> Sweep:
        """Make the sweep and all its submissions, or none. The same key with the same request gives the same sweep, also when two race.

        Raises:
            IdempotencyConflict: The key was another request's.
            QuotaExceeded, TooManySubmissions: The sweep is one run, and as many live submissions as it needs model servers.
        """
        try:
            sweep = await self._insert(account, request, idempotency_key, hub_token)
        except IntegrityError:  # the other of two racers was first: its row is there now
            sweep = await self._insert(account, request, idempotency_key, hub_token)
        for submission in sweep.submissions:
            if submission.status is Status.QUEUED:
                self._changes.announce(submission.id, Status.QUEUED)
        return sweep

    async def list_own(self, account: Account) -> list[Sweep]:
        """List the caller's newest sweeps; every developer's for an admin."""
        async with self._database.read() as session:
            own = None if account.role is Role.ADMIN else account.id
            rows = await queries.newest(session, own)
            members = await queries.submissions_of(session, [row.id for row in rows])
        of_sweep = defaultdict[str | None, list[SubmissionRow]](list)
        for member in members:
            of_sweep[member.sweep].append(member)
        return [_read(row, of_sweep[row.id]) for row in rows]

    async def get(self, account: Account, sweep_id: str) -> Sweep:
        """Read a sweep. Raise SweepNotFound for another developer's."""
        async with self._database.read() as session:
            return await self._visible(session, account, sweep_id)

    async def cancel(self, account: Account, sweep_id: str) -> Sweep:
        return await self._change(account, sweep_id, IN_PROGRESS, self._submissions.cancel)

    async def deactivate(self, account: Account, sweep_id: str) -> Sweep:
        return await self._change(
            account, sweep_id, {Status.DEPLOYED}, self._submissions.deactivate
        )

    async def reactivate(self, account: Account, sweep_id: str) -> Sweep:
        return await self._change(
            account, sweep_id, {Status.INACTIVE}, self._submissions.reactivate
        )

    async def teardown(self, account: Account, sweep_id: str) -> Sweep:
        return await self._change(account, sweep_id, SERVED, self._submissions.teardown)

    async def _change(
        self,
        account: Account,
        sweep_id: str,
        statuses: Collection[Status],
        change: Change,
    ) -> Sweep:
        """Change each submission that has one of the statuses. Doing it again changes nothing more.

        The last ones first: of a sweep that is cancelled no other variant takes the first one's place.
        """
        sweep = await self.get(account, sweep_id)
        for submission in reversed(sweep.submissions):
            if submission.status not in statuses:
                continue
            try:
                await change(account, submission.id)
            except IllegalTransition:  # it has moved on meanwhile; its state is in the answer
                continue
        return await self.get(account, sweep_id)

    async def _insert(
        self,
        account: Account,
        request: SweepRequest,
        idempotency_key: str | None,
        hub_token: SecretStr | None,
    ) -> Sweep:
        digest = request_hash(request)
        first = request.variants[0]

        async def insert(session: AsyncSession) -> Sweep:
            if idempotency_key is not None:
                await quota_queries.lock_quota(session, account.id)  # of two racers one waits here
                known = await queries.by_idempotency_key(session, account.id, idempotency_key)
                if known is not None and known.request_hash != digest:
                    raise IdempotencyConflict
                if known is not None:
                    return _read(known, await queries.submissions_of(session, [known.id]))
            await self._quotas.take(session, account, servers=engines_of(request))
            slug = f"{slug_of(first.repo)}_sweep"
            row = SweepRow(
                id=f"{slug}{await submission_queries.next_number(session, slug)}",
                account_id=account.id,
                developer=account.name,
                name=request.name or first.repo.rpartition("/")[2],
                repo=first.repo,
                revision=first.revision,
                idempotency_key=idempotency_key,
                request_hash=digest,
                created_at=self._clock.now(),
            )
            session.add(row)
            await session.flush()
            members = await self._submissions.add_variants(
                session, account, row.id, request.variants, hub_token
            )
            return _read(row, members)

        return await self._database.write_unit(insert)

    async def _visible(self, session: AsyncSession, account: Account, sweep_id: str) -> Sweep:
        row = await queries.sweep(session, sweep_id)
        if row is None or (account.role is not Role.ADMIN and row.account_id != account.id):
            raise SweepNotFound(sweep_id)
        return _read(row, await queries.submissions_of(session, [sweep_id]))


def _read(row: SweepRow, members: Sequence[SubmissionRow]) -> Sweep:
    return Sweep(
        id=row.id,
        name=row.name,
        developer=row.developer,
        repo=row.repo,
        revision=row.revision,
        created_at=row.created_at,
        submissions=[read_submission(member) for member in members],
    )
