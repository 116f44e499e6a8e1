"""Carries out what developers do with their submissions. The platform reads them by ``catalog.py``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import (
    CannotDelete,
    CardNotFound,
    Conflict,
    IdempotencyConflict,
    InvalidInput,
    ModelNotLive,
    ReportNotFound,
    SubmissionNotFound,
)
from guanaco.prompts import Prompt
from guanaco.submissions import (
    EventKind,
    RedeployRequest,
    Status,
    StressReport,
    Submission,
    SubmissionKind,
    SubmissionRequest,
)
from guanaco.sweeps import SweepRequest
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle, queries
from guanaco_server.submissions.aliases import queries as alias_queries
from guanaco_server.submissions.aliases.service import AliasService
from guanaco_server.submissions.catalog import SubmissionBrief, SubmissionCatalog, brief_of
from guanaco_server.submissions.hub_tokens import HubTokens
from guanaco_server.submissions.lifecycle import ENDED, SERVED
from guanaco_server.submissions.quotas import queries as quota_queries
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.reading import read_submission, read_whole
from guanaco_server.submissions.recipes import RecipeService
from guanaco_server.submissions.rewards import RewardService
from guanaco_server.submissions.rollouts.records import AT_ONCE
from guanaco_server.submissions.rollouts.service import RolloutService
from guanaco_server.submissions.runs import queries as run_queries
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.stored_prompts.service import PromptStore
from guanaco_server.submissions.tables import SubmissionRow
from guanaco_server.submissions.visibility import note_others, visible_row
from guanaco_server.workers.absence import WorkerAbsences

SLUG_CHARS = 80
DELETABLE = ENDED


@dataclass(frozen=True)
class SubmissionFilter:
    """A filter for lists of submissions. ``text`` is looked for in id, name and developer. Empty fields filter nothing."""

    statuses: tuple[Status, ...] = ()
    text: str = ""


class SubmissionService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        audit: AuditLog,
        quotas: QuotaService,
        hub_tokens: HubTokens,
        rollouts: RolloutService,
        stored_prompts: PromptStore,
        absences: WorkerAbsences,
        default_reward: str | None,
    ) -> None:
        self.rollouts = rollouts
        self.stored_prompts = stored_prompts
        self._quotas = quotas
        self._hub_tokens = hub_tokens
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._absences = absences
        self._audit = audit
        self.recipes = RecipeService(database, clock, deployments)
        self.rewards = RewardService(database, default_reward)
        self.aliases = AliasService(database, clock, audit)
        self.catalog = SubmissionCatalog(database, deployments, self.rewards)

    async def submit(
        self,
        account: Account,
        request: SubmissionRequest,
        idempotency_key: str | None,
        hub_token: SecretStr | None = None,
    ) -> Submission:
        """Queue a submission. The same key with the same request gives the same one, also when two race.

        ``hub_token`` is the developer's own, for a private or gated repo; it is deleted when the weights are serialized.
        """
        try:
            row = await self._insert(account, request, idempotency_key, hub_token)
        except IntegrityError:  # the other of two racers was first: its row is there now
            row = await self._insert(account, request, idempotency_key, hub_token)
        self._changes.announce(row.id, row.status)
        return await self._with_absence(read_submission(row))

    async def list_own(self, account: Account, tags: Collection[str] = ()) -> list[Submission]:
        """List the caller's submissions, newest first; every developer's for an admin. With ``tags``, list only submissions that have all of them."""
        async with self._database.read() as session:
            own = None if account.role is Role.ADMIN else account.id
            rows = await queries.newest_first(session, own)
            named = await alias_queries.by_submission(session, own)
        return [
            read_submission(row, aliases=named.get(row.id, ()))
            for row in rows
            if set(tags) <= set(row.tags or ())
        ]

    async def set_tags(
        self, account: Account, submission_id: str, tags: Sequence[str]
    ) -> Submission:
        """Replace a submission's tags; one that is given twice counts once."""

        async def tag(session: AsyncSession) -> Submission:
            row = await visible_row(session, account, submission_id, is_locked=True)
            row.tags = list(dict.fromkeys(tags))
            await note_others(self._audit, session, account, row, "tag submission")
            return await read_whole(self._deployments, session, row)

        return await self._database.write_unit(tag)

    async def show_prompt(self, account: Account, submission_id: str, is_shown: bool) -> Submission:
        """Show the prompt on the public page, or show it no longer."""

        async def show(session: AsyncSession) -> Submission:
            row = await visible_row(session, account, submission_id, is_locked=True)
            row.show_prompt = is_shown
            did = "show prompt of submission" if is_shown else "hide prompt of submission"
            await note_others(self._audit, session, account, row, did)
            return await read_whole(self._deployments, session, row)

        return await self._database.write_unit(show)

    async def public_prompt(self, submission_id: str) -> Prompt | None:
        """Return the prompt if its developer shows it to everybody; None otherwise."""
        async with self._database.read(may_be_stale=True) as session:
            row = await queries.by_id(session, submission_id)
        is_shown = row is not None and row.show_prompt and row.kind is SubmissionKind.CHAT
        return row.formatter if row is not None and is_shown else None

    async def page(
        self, account: Account, page: int, limit: int, only: SubmissionFilter
    ) -> tuple[list[Submission], int]:
        """Return one page of the same list, counted from 1, and the number of all entries."""
        own = None if account.role is Role.ADMIN else account.id
        async with self._database.read() as session:
            total = await queries.count(session, own, only.statuses, only.text)
            rows = await queries.newest_first(
                session, own, only.statuses, only.text, (page - 1) * limit, limit
            )
            return [read_submission(row) for row in rows], total

    async def require_visible(self, account: Account, submission_id: str) -> Submission:
        """Read a submission with its stages. Raise SubmissionNotFound for another developer's."""
        async with self._database.read() as session:
            row = await visible_row(session, account, submission_id)
            found = await read_whole(self._deployments, session, row)
        return await self._with_absence(found)

    async def _with_absence(self, submission: Submission) -> Submission:
        """Say since when no worker has been heard of, if one is needed."""
        if not (submission.is_served or submission.is_in_progress):
            return submission
        absence = await self._absences.find()
        return submission.model_copy(update={"no_worker_since": absence and absence.since})

    async def ensure_visible(self, account: Account, submission_id: str) -> None:
        """Raise SubmissionNotFound for another developer's submission. Reads no more than its row."""
        async with self._database.read() as session:
            await visible_row(session, account, submission_id)

    async def require_choosable(self, account: Account, named: str) -> SubmissionBrief:
        """Return the submission that an account names to talk to, by its id or alias; a developer's own, any for others.

        SubmissionNotFound, AmbiguousAlias; InvalidInput for a reward model, ModelNotLive for one that takes no conversations.
        """
        async with self._database.read() as session:
            submission_id = await self.aliases.resolved(session, account, named)
            row = await queries.by_id(session, submission_id)
        is_others = (
            row is not None and account.role is Role.DEVELOPER and row.account_id != account.id
        )
        if row is None or is_others or row.deleted_at is not None:
            raise SubmissionNotFound(named)
        if row.kind is SubmissionKind.REWARD:
            raise InvalidInput(f"{named} is a reward model, which writes no replies.")
        if row.status is not Status.DEPLOYED:
            raise ModelNotLive(named, row.status)
        return brief_of(row)

    async def card(self, account: Account, submission_id: str) -> StoredCard:
        """Read what its repo's README.md said when it was checked; CardNotFound where it had none."""
        async with self._database.read() as session:
            await visible_row(session, account, submission_id)
            card = await queries.card(session, submission_id)
        if card is None:
            raise CardNotFound(submission_id)
        return card

    async def stress_report(self, account: Account, submission_id: str) -> StressReport:
        async with self._database.read() as session:
            await visible_row(session, account, submission_id)
            row = await run_queries.latest_report(session, submission_id)
            if row is None:
                raise ReportNotFound(submission_id)
            return row.report

    async def cancel(self, account: Account, submission_id: str) -> Submission:
        """Cancel a submission and withdraw its deployment. The running stage notices, stops and cleans up.

        If it is served, cancel its redeploy as long as the version before still serves.
        """
        rolled_back = await self.rollouts.cancel(account, submission_id)
        if rolled_back is not None:
            return rolled_back
        return await self._move(account, submission_id, "cancel", Status.CANCELLED)

    async def deactivate(self, account: Account, submission_id: str) -> Submission:
        """No new conversations; the open ones go on."""
        return await self._move(account, submission_id, "deactivate", Status.INACTIVE)

    async def reactivate(self, account: Account, submission_id: str) -> Submission:
        inactive = frozenset({Status.INACTIVE})
        return await self._move(account, submission_id, "reactivate", Status.DEPLOYED, inactive)

    async def teardown(self, account: Account, submission_id: str) -> Submission:
        """Stop its model server; its feedback stays readable. RewardInUse for a reward model that is named by others."""
        return await self._move(account, submission_id, "tear down", Status.TORN_DOWN)

    async def delete(self, account: Account, submission_id: str) -> Submission:
        """Take a submission out of every list for good; what its GPUs cost stays counted, and its id is not given again.

        Raises:
            CannotDelete: It has not failed, or it was live: then it has conversations and ratings.
            RewardInUse: Submissions that are live, or on their way, name it as their reward model.
        """

        async def delete(session: AsyncSession) -> Submission:
            row = await visible_row(session, account, submission_id, is_locked=True)
            was_live = await run_queries.has_been(session, submission_id, Status.DEPLOYED)
            if was_live or row.status not in DELETABLE:
                raise CannotDelete(submission_id, row.status, was_live=was_live)
            await self.rewards.require_unused(session, submission_id)
            row.deleted_at, row.idempotency_key = self._clock.now(), None
            await alias_queries.drop_all(session, submission_id)
            await note_others(self._audit, session, account, row, "delete submission")
            return await read_whole(self._deployments, session, row)

        return await self._database.write_unit(delete)

    async def redeploy(
        self,
        account: Account,
        submission_id: str,
        hub_token: SecretStr | None = None,
        request: RedeployRequest = AT_ONCE,
    ) -> Submission:
        """Run the pipeline again, at the same commit if one was resolved; a serialized artifact is used again.

        The served version stays until the new one has taken its place (rollouts/). A private or gated repo needs its developer's ``hub_token`` again. RedeployInProgress while the last one is under way; InvalidInput for a
        canary of what takes no conversations.
        """
        rolling = await self.rollouts.begin(account, submission_id, hub_token, request)
        if rolling is not None:
            return rolling
        if request.promote:
            raise Conflict(
                f"{submission_id} is not served, so there is nothing to promote.",
                hint="Redeploy it, and promote it when it does well.",
            )
        if request.canary is not None:
            raise Conflict(
                f"{submission_id} is not served, so a canary has nothing to be compared with.",
                hint="Redeploy it without a canary.",
            )
        return await self._move(
            account, submission_id, "redeploy", Status.QUEUED, hub_token=hub_token
        )

    async def _move(
        self,
        account: Account,
        submission_id: str,
        verb: str,
        to: Status,
        sources: frozenset[Status] | None = None,
        hub_token: SecretStr | None = None,
    ) -> Submission:
        """Change the status. An admin's change of another's submission is noted in the audit log."""

        async def move(session: AsyncSession) -> Submission:
            row = await visible_row(session, account, submission_id)
            if to is Status.QUEUED:
                await self._quotas.take(session, account, is_live=row.status in SERVED)
                await self._hub_tokens.keep(session, submission_id, hub_token, self._clock.now())
            row = await lifecycle.transition(
                session,
                submission_id,
                to,
                at=self._clock.now(),
                sources=sources,
                run=row.run + (to is Status.QUEUED),
            )
            if to is Status.TORN_DOWN:
                await self.rewards.require_unused(session, submission_id)
            if to in (Status.TORN_DOWN, Status.QUEUED, Status.CANCELLED):
                is_torn_down = to is Status.TORN_DOWN
                await self._deployments.withdraw(session, submission_id, is_torn_down=is_torn_down)
                await self.rollouts.records.cancel(session, submission_id)
            await note_others(self._audit, session, account, row, f"{verb} submission")
            moved = await read_whole(self._deployments, session, row)
            await keep_answer(session, moved)
            return moved

        moved = await self._database.write_unit(move)
        self._changes.announce(submission_id, to)
        return moved

    async def _insert(
        self,
        account: Account,
        request: SubmissionRequest,
        idempotency_key: str | None,
        hub_token: SecretStr | None,
    ) -> SubmissionRow:
        digest = request_hash(request)

        async def insert(session: AsyncSession) -> SubmissionRow:
            if idempotency_key is not None:
                await quota_queries.lock_quota(session, account.id)  # of two racers one waits here
                known = await queries.by_idempotency_key(session, account.id, idempotency_key)
                if known is not None and known.request_hash != digest:
                    raise IdempotencyConflict
                if known is not None:
                    return known
            await self._quotas.take(session, account)
            row = await self._new_row(session, account, request)
            row.idempotency_key, row.request_hash = idempotency_key, digest
            await self._add(session, row, hub_token, f"Submitted {row.repo}.")
            return row

        return await self._database.write_unit(insert)

    async def add_variants(
        self,
        session: AsyncSession,
        account: Account,
        sweep_id: str,
        variants: Sequence[SubmissionRequest],
        hub_token: SecretStr | None,
    ) -> list[SubmissionRow]:
        """Make a sweep's submissions within the caller's transaction, which has taken a place for them all."""
        rows = []
        for place, request in enumerate(variants, 1):
            row = await self._new_row(session, account, request)
            row.sweep, row.sweep_place, row.request_hash = sweep_id, place, request_hash(request)
            message = f"Submitted {row.repo}, variant {place} of {len(variants)} of {sweep_id}."
            await self._add(session, row, hub_token, message)
            rows.append(row)
        return rows

    async def _add(
        self, session: AsyncSession, row: SubmissionRow, hub_token: SecretStr | None, message: str
    ) -> None:
        session.add(row)
        await session.flush()
        await self._hub_tokens.keep(session, row.id, hub_token, row.created_at)
        await lifecycle.append_event(
            session,
            row.id,
            EventKind.STATUS,
            message,
            at=row.created_at,
            data={"status": Status.QUEUED},
        )

    async def _new_row(
        self, session: AsyncSession, account: Account, request: SubmissionRequest
    ) -> SubmissionRow:
        reward = await self.aliases.resolved(session, account, request.reward)
        await self.rewards.require_usable(session, account, reward)
        formatter, prompt_version = await self.stored_prompts.resolved(session, account, request)
        slug = slug_of(request.repo)
        now = self._clock.now()
        return SubmissionRow(
            id=f"{slug}_v{await queries.next_number(session, slug)}",
            account_id=account.id,
            developer=account.name,
            kind=request.kind,
            repo=request.repo,
            revision=request.revision,
            name=request.name or request.repo.rpartition("/")[2],
            status=Status.QUEUED,
            params=request.params,
            formatter=formatter,
            prompt=request.prompt,
            prompt_version=prompt_version,
            dtype=request.dtype,
            quantization=request.quantization,
            reward=reward,
            reward_formatter=request.reward_formatter,
            show_prompt=request.show_prompt,
            run=1,
            event_count=0,
            created_at=now,
            updated_at=now,
        )


def slug_of(repo: str) -> str:
    """Return a repo's name as it stands in the ids of its submissions and sweeps."""
    return re.sub(r"[^a-z0-9.-]+", "-", repo.lower())[:SLUG_CHARS]


def request_hash(request: BaseModel) -> str:
    """Return the digest by which a request that is repeated with its Idempotency-Key is known.

    A field that a version has added is left out where it says nothing, so that a request is known across the upgrade.
    """
    text = request.model_dump_json(exclude=_unset_fields(request))
    return hashlib.sha256(text.encode()).hexdigest()


def _unset_fields(request: BaseModel) -> Any:
    if isinstance(request, SubmissionRequest):
        return {"prompt"} if request.prompt is None else None
    if isinstance(request, SweepRequest):
        silent = {place: _unset_fields(one) for place, one in enumerate(request.variants)}
        return {"variants": {place: fields for place, fields in silent.items() if fields}}
    return None
