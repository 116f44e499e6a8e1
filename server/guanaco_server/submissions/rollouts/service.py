"""Carries out what developers do with redeploys of what is served: begin, cancel, roll back."""

from __future__ import annotations

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import Conflict, InvalidInput, NothingToRollBack, RedeployInProgress
from guanaco.submissions import RedeployRequest, RolloutPhase, Status, Submission, SubmissionKind
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import is_adapter
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.hub_tokens import HubTokens
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.reading import read_whole
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.records import AT_ONCE, RolloutRecords
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.tables import SubmissionRow
from guanaco_server.submissions.visibility import note_others, visible_row

MAY_END = (RolloutPhase.PREPARING, RolloutPhase.SHIFTING)  # the version before still serves


class RolloutService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        audit: AuditLog,
        quotas: QuotaService,
        hub_tokens: HubTokens,
        records: RolloutRecords,
    ) -> None:
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._audit = audit
        self._quotas = quotas
        self._hub_tokens = hub_tokens
        self.records = records

    async def begin(
        self,
        account: Account,
        submission_id: str,
        hub_token: SecretStr | None,
        request: RedeployRequest,
    ) -> Submission | None:
        """Begin to redeploy a submission beside the version that serves; None if none does.

        Raises RedeployInProgress while the last one is under way, InvalidInput for a canary of a reward model, Conflict
        where there is nothing to promote.
        """

        async def begin(session: AsyncSession) -> Submission | None:
            row = await visible_row(session, account, submission_id, is_locked=True)
            if row.status not in SERVED:
                return None
            rollout = await queries.rollout(session, submission_id)
            if rollout is not None and rollout.phase.is_in_progress:
                raise RedeployInProgress(submission_id)
            await self._quotas.take(session, account, is_live=True)
            now = self._clock.now()
            await self._hub_tokens.keep(session, submission_id, hub_token, now)
            row.run, row.updated_at = row.run + 1, now
            if request.canary is not None and row.kind is not SubmissionKind.CHAT:
                raise InvalidInput(
                    f"{submission_id} is a reward model, which has no conversations to share.",
                    hint="Redeploy it without a canary.",
                )
            if request.promote:
                await self._require_unmerged(session, row)
            await self.records.begin(session, submission_id, row.run, request)
            verb = "promote" if request.promote else "redeploy"
            await note_others(self._audit, session, account, row, f"{verb} submission")
            begun = await read_whole(self._deployments, session, row)
            await keep_answer(session, begun)
            return begun

        begun = await self._database.write_unit(begin)
        if begun is not None:
            self._changes.announce(submission_id, Status.QUEUED)
        return begun

    async def _require_unmerged(self, session: AsyncSession, row: SubmissionRow) -> None:
        """Raise Conflict where there is nothing to merge."""
        if row.base_repo is None:
            raise Conflict(
                f"{row.id} is no LoRA adapter, so there is nothing to merge.",
                hint="`guanaco redeploy` runs its pipeline again.",
            )
        served = await self.records.served_version(session, row.id)
        if served is None or not is_adapter(served.artifact_key, served.base_key):
            raise Conflict(
                f"{row.id} is merged into its base already.",
                hint="`guanaco stress ID` shows how it answers.",
            )

    async def cancel(self, account: Account, submission_id: str) -> Submission | None:
        """Cancel the redeploy of a submission that is served, while the version before has not given way; None if there is none."""

        async def cancel(session: AsyncSession) -> Submission | None:
            row = await visible_row(session, account, submission_id, is_locked=True)
            rollout = await queries.rollout(session, submission_id)
            if row.status not in SERVED or rollout is None or rollout.phase not in MAY_END:
                return None
            await self.records.give_back(session, rollout, RolloutPhase.CANCELLED)
            await note_others(
                self._audit, session, account, row, "cancel the redeploy of submission"
            )
            cancelled = await read_whole(self._deployments, session, row)
            await keep_answer(session, cancelled)
            return cancelled

        return await self._database.write_unit(cancel)

    async def rollback(self, account: Account, submission_id: str) -> Submission:
        """End the redeploy that is under way; or else bring back the version that the last one replaced.

        Raises RedeployInProgress while the old version drains, NothingToRollBack where none was replaced.
        """

        async def roll_back(session: AsyncSession) -> Submission:
            row = await visible_row(session, account, submission_id, is_locked=True)
            rollout = await queries.rollout(session, submission_id)
            if row.status not in SERVED or rollout is None:
                raise NothingToRollBack(submission_id)
            if rollout.phase in MAY_END:
                await self.records.give_back(session, rollout, RolloutPhase.CANCELLED)
            elif rollout.phase.is_in_progress:
                raise RedeployInProgress(submission_id)
            else:
                replaced = await queries.replaced_version(session, submission_id)
                if replaced is None:
                    raise NothingToRollBack(submission_id)
                await self._quotas.take(session, account, is_live=True)
                row.run, row.updated_at = row.run + 1, self._clock.now()
                await self.records.begin(session, submission_id, row.run, AT_ONCE, replaced)
            await note_others(self._audit, session, account, row, "roll back submission")
            rolled = await read_whole(self._deployments, session, row)
            await keep_answer(session, rolled)
            return rolled

        rolled = await self._database.write_unit(roll_back)
        self._changes.announce(submission_id, Status.QUEUED)
        return rolled
