"""The first two stages for a repo that nobody has submitted: nothing is stored, and nothing is downloaded but headers."""

from __future__ import annotations

import asyncio
import os

from pydantic import SecretStr

from guanaco.checks import RepoCheck
from guanaco.errors import HubUnreachable, SubmissionFailure, TooManyAttempts
from guanaco.submissions import Stage, Status, Submission, SubmissionRequest
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.pipeline.records import as_failure
from guanaco_server.submissions.pipeline.stages import StageParts, examine, hub_of
from guanaco_server.submissions.rewards import RewardService
from guanaco_server.submissions.stored_prompts.service import PromptStore

AT_ONCE = max(
    1, (os.cpu_count() or 1) // 2
)  # for all developers: each check may hold a tokenizer's process
LONGEST_S = 120.0  # as long as the client waits, and more than a large repo takes
RETRY_S = 10.0


class RepoChecks:
    """Checks one repo at a time for each developer."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        parts: StageParts,
        rewards: RewardService,
        stored_prompts: PromptStore,
    ) -> None:
        self._database = database
        self._clock = clock
        self._parts = parts
        self._rewards = rewards
        self._stored_prompts = stored_prompts
        self._places = asyncio.Semaphore(AT_ONCE)
        self._busy: set[str] = set()

    async def check(
        self, account: Account, request: SubmissionRequest, hub_token: SecretStr | None = None
    ) -> RepoCheck:
        """Return what a submission would fail with, or what is known of its model.

        Raises:
            PromptNotFound: The request names a stored prompt that its developer does not have.
            RewardUnusable: The request names a reward model that its developer cannot use.
            TooManyAttempts: Another check of this developer is not done yet.
        """
        request = await self._stored_prompts.with_formatter(account, request)
        async with self._database.read() as session:
            await self._rewards.require_usable(session, account, request.reward)
        if account.id in self._busy:
            raise TooManyAttempts(RETRY_S)
        self._busy.add(account.id)
        try:
            async with self._places:
                return await self._check(account, self._unstored(account, request), hub_token)
        finally:
            self._busy.discard(account.id)

    async def _check(
        self, account: Account, submission: Submission, hub_token: SecretStr | None
    ) -> RepoCheck:
        found = RepoCheck(repo=submission.repo, commit=None, failure=None)
        stage = Stage.RESOLVE
        try:
            async with asyncio.timeout(LONGEST_S):
                hub = hub_of(self._parts, hub_token)
                snapshot = await hub.resolve(submission.repo, submission.revision)
                found = found.model_copy(update={"commit": snapshot.commit})
                stage = Stage.CHECK
                pinned = submission.model_copy(update={"commit": snapshot.commit})
                model = await examine(self._parts, hub, pinned)
                await self._parts.quotas.require_room(account, model.weight_bytes)
        except TimeoutError:
            late = HubUnreachable(
                f"The check was not done after {LONGEST_S:.0f} s.", hint="Try again later."
            )
            return found.model_copy(update={"failure": as_failure(late, stage)})
        except SubmissionFailure as error:
            return found.model_copy(update={"failure": as_failure(error, stage)})
        base = model.base
        return found.model_copy(
            update={
                "architecture": model.architecture,
                "parameter_count": model.parameter_count,
                "weight_bytes": model.weight_bytes,
                "base_repo": base.repo if base else None,
                "base_commit": base.commit if base else None,
            }
        )

    def _unstored(self, account: Account, request: SubmissionRequest) -> Submission:
        """Return the submission that the request would make."""
        now = self._clock.now()
        fields = {name: getattr(request, name) for name in SubmissionRequest.model_fields}
        return Submission(
            **fields | {"name": request.name or request.repo},
            id="",
            developer=account.name,
            commit=None,
            status=Status.CHECKING,
            failure=None,
            base_repo=None,
            base_commit=None,
            architecture=None,
            parameter_count=None,
            weight_bytes=None,
            artifact_key=None,
            run=0,
            created_at=now,
            updated_at=now,
        )
