"""Builds the pipeline room: the stages of a submission, and the durable workflow that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.errors import ModelServerDied
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.artifacts.checking.checks import CheckLimits
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.artifacts.service import ArtifactService, Exclusive
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.costs.service import CostService
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.takeover import Takeover
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.service import PromptService
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.stress.service import StressService
from guanaco_server.submissions.hub_tokens import HubTokens
from guanaco_server.submissions.pipeline.adapter_choice import AdapterPolicy
from guanaco_server.submissions.pipeline.checks.content import ContentChecks
from guanaco_server.submissions.pipeline.checks.fixed_text import FixedText
from guanaco_server.submissions.pipeline.checks.load import LoadCheck
from guanaco_server.submissions.pipeline.checks.merge import MergeCheck
from guanaco_server.submissions.pipeline.checks.places import TakePlace
from guanaco_server.submissions.pipeline.checks.quantization import QuantizationCheck
from guanaco_server.submissions.pipeline.checks.repo import RepoChecks
from guanaco_server.submissions.pipeline.records import RunRecords
from guanaco_server.submissions.pipeline.runner import StageRunner
from guanaco_server.submissions.pipeline.server_start import QueueFor, ServerStart, evidence
from guanaco_server.submissions.pipeline.stages import StageParts
from guanaco_server.submissions.pipeline.traffic_plans import TrafficPlans
from guanaco_server.submissions.pipeline.workflow import ListWorkers, Pipeline
from guanaco_server.submissions.prompt_trials import PromptTrials
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.rollouts.records import RolloutRecords
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.submissions.stored_prompts.labels import PromptLabels
from guanaco_server.tokenization.service import Tokenizers


@dataclass(frozen=True)
class PipelineRoom:
    """``pipeline`` is a loop: it takes what is queued and resumes what was interrupted."""

    records: RunRecords
    quantization: QuantizationCheck
    server_start: ServerStart
    runner: StageRunner
    pipeline: Pipeline
    checks: RepoChecks
    trials: PromptTrials
    prompt_labels: PromptLabels
    plans: TrafficPlans

    async def give_up(self, key: str, log_lines: list[str]) -> None:
        """Fail a published submission whose model server keeps dying, or the redeploy of which it is."""
        await self.records.fail_published(
            key,
            ModelServerDied(
                f"The model server kept dying after it was published: {evidence(log_lines)}",
                hint="`guanaco redeploy` tries again.",
            ),
        )


def build_pipeline(
    database: Database,
    clock: Clock,
    hub: Hub,
    store: ArtifactStore,
    model_server: ModelServer,
    *,
    changes: StatusChanges,
    quotas: QuotaService,
    hub_tokens: HubTokens,
    rollouts: RolloutRecords,
    configs: ArtifactConfigs,
    artifacts: ArtifactService,
    prompts: PromptService,
    tokenizers: Tokenizers,
    deployments: DeploymentService,
    takeover: Takeover,
    costs: CostService,
    submissions: SubmissionService,
    audit: AuditLog,
    stress: StressService,
    take_place: TakePlace,
    queue_for: QueueFor,
    list_workers: ListWorkers,
    exclusive: Exclusive,
    metrics: Metrics,
    settings: Settings,
) -> PipelineRoom:
    records = RunRecords(database, clock, changes, deployments, hub_tokens, rollouts)
    text = FixedText(tokenizers)
    quantization = QuantizationCheck(
        records,
        configs,
        text,
        model_server,
        take_place,
        settings.quantization_max_perplexity_ratio,
    )
    adapters = AdapterPolicy(
        settings.serves_adapters,
        settings.lora_max_rank,
        deployments.servers.can_add_adapters,
        settings.starts_bases_for_adapters,
    )
    server_start = ServerStart(
        records,
        deployments,
        takeover,
        ContentChecks(
            records,
            store,
            configs,
            prompts,
            tokenizers,
            model_server,
            take_place,
            settings.reply_timeout_s,
        ),
        quantization,
        costs,
        queue_for,
        adapters,
        settings.ready_timeout_s,
    )
    parts = StageParts(
        records=records,
        quotas=quotas,
        hub=hub,
        limits=CheckLimits(settings.max_parameters, settings.max_weight_bytes),
        checker=configs.checker,
        artifacts=artifacts,
        prompts=prompts,
        tokenizers=tokenizers,
        deployments=deployments,
        server_start=server_start,
        load_check=LoadCheck(
            database,
            clock,
            records,
            deployments,
            server_start,
            prompts,
            stress,
            take_place,
            MergeCheck(
                records, deployments, model_server, text, take_place, settings.ready_timeout_s
            ),
            exclusive,
        ),
        adapters=adapters,
    )
    runner = StageRunner(parts, metrics)
    pipeline = Pipeline(
        runner,
        records,
        changes,
        list_workers,
        records.waits_for,
        database.watch_commits(),
        database_url=settings.workflow_database_url,
        executor_id=settings.executor_id,
        concurrency=settings.pipeline_concurrency,
    )
    checks = RepoChecks(database, clock, parts, submissions.rewards, submissions.stored_prompts)
    trials = PromptTrials(submissions, prompts, tokenizers)
    labels = PromptLabels(database, clock, submissions.stored_prompts, prompts, audit)
    plans = TrafficPlans(parts, PriceTable(settings.gpu_prices), settings.gpus_per_machine)
    return PipelineRoom(
        records, quantization, server_start, runner, pipeline, checks, trials, labels, plans
    )
