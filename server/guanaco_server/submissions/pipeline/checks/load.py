"""The stress check of a submission: a load of its own, or one that a submission of the same engine has passed lately.

alone on its engine              a load, and the knee unless other model servers of the machine answer requests meanwhile
others use the engine            its requests take places as users' turns do (stress/sharing.py), from when they do
  one of them passed lately,     a few requests of its own, with its prompts and parameters; if these keep to every
  and asked as much of a request limit, the figures are that one's, and the report says so
a load is sent to the engine      it is waited for: it may then be known
the server went away meanwhile   no verdict: the stage begins again once it is back
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

from guanaco.errors import ModelServerLost
from guanaco.submissions import Stage, StressReport, Submission, SubmissionKind
from guanaco_server.artifacts.service import Exclusive
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.model_server import cache_salt_of
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime.clock import Clock
from guanaco_server.stress.conversations import Prompted, conversation_prompts
from guanaco_server.stress.service import SCORED_AT_ONCE, StressService
from guanaco_server.stress.sharing import CheckedServer, KnownLoad
from guanaco_server.submissions.pipeline.checks.merge import MergeCheck
from guanaco_server.submissions.pipeline.checks.places import TakePlace
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords
from guanaco_server.submissions.pipeline.server_start import ServerStart
from guanaco_server.submissions.runs import queries as run_queries
from guanaco_server.submissions.tables import SubmissionRow

REUSED_FOR_S = (
    86_400  # the same bytes on the same kind of machine answer tomorrow as they did today
)
LOST_LOOKS = 12
LONGEST_NAME = 128  # of a lease
LOOK_S = 0.25  # the reconciler looks each second


class LoadCheck:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        records: RunRecords,
        deployments: DeploymentService,
        server_start: ServerStart,
        prompts: PromptService,
        stress: StressService,
        take_place: TakePlace,
        merge: MergeCheck,
        exclusive: Exclusive,
    ) -> None:
        """``exclusive`` keeps other processes from checking the same engine."""
        self._exclusive = exclusive
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._merge = merge
        self._database = database
        self._clock = clock
        self._records = records
        self._deployments = deployments
        self._server_start = server_start
        self._prompts = prompts
        self._stress = stress
        self._take_place = take_place

    async def run(self, run: PipelineRun, submission: Submission) -> StressReport:
        """Check the load, and compare a merged model with its adapter. ModelServerLost if the server went away meanwhile."""
        endpoint = await self._server_start.require_ready(run)
        report = await self._report_in_turn(run, submission, endpoint)
        compared = await self._merge.measure(run, endpoint)
        facts = {
            "divergence": compared.divergence,
            "not_compared": compared.why_not,
            "merged_because": submission.merged_because,
        }
        return report.model_copy(update=facts)

    async def _report_in_turn(
        self, run: PipelineRun, submission: Submission, endpoint: str
    ) -> StressReport:
        """Check the load; an engine gets one load at a time."""
        server = await self._server(run, endpoint, submission)
        if server.known is None:
            key = await self._records.deployment_key(run)
            deployment = await self._deployments.find(key)
            engine = deployment.server_key if deployment is not None else key
            async with self._locks[engine], self._exclusive(f"stress-{engine}"[:LONGEST_NAME]):
                server = await self._server(run, endpoint, submission)
                if server.known is None:
                    report = await self._report(run, submission, server)
                    await self._records.save_report(run, report)  # for whoever is next
                    return report
        return await self._report(run, submission, server)

    async def _report(
        self, run: PipelineRun, submission: Submission, server: CheckedServer
    ) -> StressReport:
        key, endpoint = await self._records.deployment_key(run), server.endpoint
        since = await self._deployments.ready_since(key, endpoint)
        report = await self._checked(run, submission, server)
        if report.errors and await self._is_lost(key, endpoint, since):
            raise ModelServerLost(
                "The model server went away during the stress check, which says nothing of the model.",
                hint="Nothing is to be done: the check is made again when the server is back.",
            )
        return report

    async def _checked(
        self, run: PipelineRun, submission: Submission, server: CheckedServer
    ) -> StressReport:
        assert submission.artifact_key is not None, "the serialize stage is done"
        is_reward = submission.kind is SubmissionKind.REWARD
        own = submission.reward_formatter if is_reward else None
        plan = self._stress.plan
        prompts = await conversation_prompts(
            self._prompts,
            Prompted(own or submission.formatter, submission.artifact_key, submission.params),
            most=plan.requests,
        )
        what = f"requests to score {SCORED_AT_ONCE} candidates" if is_reward else "requests"
        message = f"Sending {plan.requests} {what}, at {plan.rate:g} a second or more."
        if server.known is not None:
            whose = server.known.submission_id or "another developer's submission"
            message = f"The load that {whose} passed on the same model server is not sent again; some {what} of its own are."
        await self._records.log(run, Stage.STRESS, message)
        model = self._deployments.model_name(await self._records.deployment_key(run))
        salt = cache_salt_of(submission.developer)
        if is_reward:
            return await self._stress.check_reward(server, model, prompts, salt)
        return await self._stress.check(server, model, prompts, submission.params, salt)

    async def _server(
        self, run: PipelineRun, endpoint: str, submission: Submission
    ) -> CheckedServer:
        key = await self._records.deployment_key(run)

        async def count_sharers() -> int:
            return len(await self._deployments.ready_on_same_engine(key))

        def neighbours() -> list[str]:
            return on_its_machine(endpoint, self._deployments.all_replicas())

        sharers = await self._deployments.ready_on_same_engine(key)
        known = await self._known_load(submission, sharers) if sharers else None
        is_chat = submission.kind is SubmissionKind.CHAT
        candidates = submission.params.candidate_count if is_chat else 1
        take_place = partial(self._take_place, key, candidates)
        return CheckedServer(endpoint, take_place, count_sharers, neighbours, candidates, known)

    async def _known_load(
        self, submission: Submission, ready_on_same_engine: Sequence[tuple[str, int]]
    ) -> KnownLoad | None:
        """Find the latest load that a sibling has passed which asked as much of a request."""
        since = self._clock.now() - timedelta(seconds=REUSED_FOR_S)
        async with self._database.read() as session:
            found = [
                (row, report)
                for row, report in await run_queries.reports_of_runs(session, ready_on_same_engine)
                if report.is_passed
                and report.candidates == submission.params.candidate_count
                and (report.reused.at if report.reused else report.at) >= since
                and _asked_as_much(row, submission)
            ]
        if not found:
            return None
        row, report = max(found, key=lambda pair: pair[1].at)
        is_own = row.developer == submission.developer
        return KnownLoad(report, row.id if is_own else None)

    async def _is_lost(self, key: str, endpoint: str, since: datetime | None) -> bool:
        """Return whether the replica that was asked is away, or was away since the check began."""
        self._deployments.report_fault(key)
        for _ in range(LOST_LOOKS):
            if await self._deployments.ready_since(key, endpoint) != since:
                return True
            await asyncio.sleep(LOOK_S)
        return since is None


def on_its_machine(endpoint: str, endpoints: Collection[str]) -> list[str]:
    """Return those others that share its processors, by their addresses: on this machine all are on loopback."""
    if not _is_loopback(endpoint):
        return []
    return sorted(one for one in endpoints if one != endpoint and _is_loopback(one))


def _is_loopback(endpoint: str) -> bool:
    with suppress(ValueError):  # a name, or no address
        return ip_address(urlsplit(endpoint).hostname or "").is_loopback
    return False


def _asked_as_much(row: SubmissionRow, submission: Submission) -> bool:
    theirs, own = row.params, submission.params
    is_lighter = row.base_repo is None and submission.base_repo is not None  # without its adapter
    return (
        row.kind is submission.kind
        and not is_lighter
        and theirs.candidate_count == own.candidate_count
        and theirs.max_input_tokens >= own.max_input_tokens
        and theirs.max_output_tokens >= own.max_output_tokens
    )
