"""The composition root: with wiring.py, what knows every concrete class.

    settings → adapters of the ports → services → pipeline and background loops

``running()`` starts and stops them in the right order; app.py puts HTTP in front.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from guanaco.accounts import CreatedKey
from guanaco.errors import ModelServerDied
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import AccountService
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.artifacts.checking.checks import CheckLimits
from guanaco_server.artifacts.collector import ArtifactCollector, Graces
from guanaco_server.artifacts.service import ArtifactService
from guanaco_server.assembly import wiring
from guanaco_server.chat.conversations.history import HistoryCache, history_reader
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.best_of import RewardModels
from guanaco_server.chat.gateway.replies import PreviewService, ReplyService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.costs.service import CostService
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.schema import wait_until_current
from guanaco_server.deployments.reconciler import Reconciler
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.vllm_server import VllmServer
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.experiments.service import ExperimentService
from guanaco_server.feedback.copies import CopyService
from guanaco_server.feedback.copying import Copying
from guanaco_server.feedback.erasure import ErasureService
from guanaco_server.feedback.pseudonyms import Pseudonyms
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.http.health import Health
from guanaco_server.leaderboard.scores import Scores
from guanaco_server.notifications.notifications import Notifications
from guanaco_server.observability.census import Census, Counts
from guanaco_server.observability.metrics import Metrics
from guanaco_server.openai.service import OpenAiService
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.occupancy import Occupancy
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.scaling.admission import Admission
from guanaco_server.scaling.autoscaler import Autoscaler
from guanaco_server.scaling.capacity import CapacityReader
from guanaco_server.scaling.sleep import Sleeper
from guanaco_server.scaling.traffic import Traffic
from guanaco_server.scaling.usage import UsageReader
from guanaco_server.settings import Settings
from guanaco_server.stress.service import StressService
from guanaco_server.submissions.events import EventFeed, StatusChanges
from guanaco_server.submissions.pipeline.content_checks import ContentChecks
from guanaco_server.submissions.pipeline.quantization_check import QuantizationCheck
from guanaco_server.submissions.pipeline.records import RunRecords
from guanaco_server.submissions.pipeline.runner import StageRunner
from guanaco_server.submissions.pipeline.server_start import ServerStart, evidence
from guanaco_server.submissions.pipeline.stages import StageParts
from guanaco_server.submissions.pipeline.workflow import Pipeline
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.web.web import Web, WebOptions
from guanaco_server.workers.heartbeat import Heartbeat, Loop
from guanaco_server.workers.service import WorkerService


class Platform:
    """All parts of one platform process. ``first_key`` is the admin key, on the very first start."""

    def __init__(self, settings: Settings, data_dir: DataDir) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.first_key: CreatedKey | None = None
        clock = SystemClock()
        self._changes = StatusChanges()

        self.database = Database(settings.sqlalchemy_url)
        self._workers = WorkerService(
            self.database, clock, settings.executor_id, settings.worker_silence_s
        )
        self._store = wiring.store(settings)
        self._model_server = VllmServer(answer_timeout_s=settings.reply_timeout_s)
        self._cluster, self._leadership = wiring.cluster(settings, data_dir, self._model_server)

        scaling = wiring.scaling(settings)
        self._deployments = DeploymentService(
            self.database,
            clock,
            self._cluster,
            self._model_server,
            self._store,
            wiring.engine(settings),
            scaling.budget.is_limited,
        )
        sleeper = Sleeper(self.database, clock, self._deployments, settings.wake_wait_s)
        self.audit = AuditLog(self.database, clock)
        self.accounts = AccountService(self.database, clock, self.audit)
        self.submissions = SubmissionService(
            self.database,
            clock,
            self._changes,
            self._deployments,
            self.audit,
            settings.default_reward_submission,
        )
        self.costs = CostService(self.database, clock, settings.budgets)
        self.events = EventFeed(self.database)
        self._journal = RunRecords(self.database, clock, self._changes, self._deployments)

        self._prompts = PromptService(self._store)
        traffic = Traffic(self.database, clock)
        rewards = RewardModels(self.submissions.rewards, self._deployments, traffic)
        generator = wiring.reply_generator(
            settings, self._model_server, self._prompts, self._deployments, rewards, self.metrics
        )
        self.competitions = CompetitionService(self.database, clock, self.audit)
        self.routing = RoutingService(
            clock,
            self.submissions,
            self._deployments,
            self.competitions,
            lambda: self.leaderboard.votes_by_competition(),
            Occupancy(
                lambda: self.conversations.open_conversations(),
                CapacityReader(self.database, settings.engine_args).read,
            ),
            traffic,
            sleeper,
        )
        self._running = RunningExperiments(self.database, self.routing)
        self.conversations = ConversationService(
            self.database,
            clock,
            self.routing,
            self.competitions,
            self.audit,
            self._running,
            wiring.conversation_spans(settings),
        )
        self.replies = ReplyService(
            history_reader(self.database),
            clock,
            self.routing,
            self._running,
            generator,
            wiring.turn_log(settings, self.database, clock),
            HistoryCache(settings.history_cache_chars),
        )
        self.conversations.on_opened(self.replies.remember)
        self.conversations.on_erased(self.replies.forget)
        self.previews = PreviewService(self.submissions, self.routing, generator)
        self.openai = OpenAiService(
            self.routing, self.conversations, self.replies, generator, self._prompts
        )
        pseudonyms = Pseudonyms(wiring.pseudonym_key(settings, data_dir))
        copies = CopyService(
            self.database,
            self.submissions,
            self.conversations,
            pseudonyms,
            Anonymizer(settings.phone_regions),
            self._running.variants_of,
        )
        self._copying = Copying(copies, clock, self.metrics)
        self.feedback = FeedbackService(
            self.database,
            clock,
            self.submissions,
            self.conversations,
            copies,
            self.audit,
            self.metrics,
            settings.ratings_per_minute,
        )
        self.feedback.on_rated(self._copying.wake)
        self.erasures = ErasureService(
            self.database, self.accounts, self.conversations, self.feedback, pseudonyms, self.audit
        )
        self.experiments = ExperimentService(
            self.database,
            clock,
            self.submissions,
            self.competitions,
            self._running,
            self._prompts,
            wiring.outcomes(self.feedback, self.conversations),
        )
        self.scores = Scores(self.database, clock, self.submissions, self.competitions)
        self.leaderboard = self.scores.leaderboard
        self.erasures.on_erase(self.scores.forget)
        self.notifications = Notifications(
            self.database, clock, self.events, self.scores.counts, self._changes, settings
        )
        self.web = Web(
            self.database,
            clock,
            accounts=self.accounts,
            submissions=self.submissions,
            events=self.events,
            deployments=self._deployments,
            competitions=self.competitions,
            board=self.leaderboard.leaderboard,
            history=self.scores.history,
            conversations=self.conversations,
            replies=self.replies,
            feedback=self.feedback,
            options=WebOptions.of(settings),
            hooks=wiring.web_hooks(self.audit, self.erasures, self.scores),
        )

        self._collector = ArtifactCollector(
            self.database,
            clock,
            self._store,
            self.submissions.needed_artifacts,
            Graces(settings.artifact_sweep_s, settings.artifact_grace_s, settings.staging_grace_s),
        )
        parts = StageParts(
            records=self._journal,
            hub=wiring.hub(settings),
            limits=CheckLimits(settings.max_parameters, settings.max_weight_bytes),
            artifacts=ArtifactService(
                self._store,
                self._collector,
                self._cluster,
                wiring.serializer(settings),
                self._workers.holding if settings.role == "worker" else None,
                self.metrics,
            ),
            prompts=self._prompts,
            deployments=self._deployments,
            server_start=ServerStart(
                self._journal,
                self._deployments,
                ContentChecks(
                    self._journal,
                    self._store,
                    self._prompts,
                    self._model_server,
                    settings.reply_timeout_s,
                ),
                QuantizationCheck(
                    self._journal,
                    self._store,
                    self._prompts.tokenizers,
                    self._model_server,
                    settings.quantization_max_perplexity_ratio,
                ),
                self.costs,
                settings.ready_timeout_s,
            ),
            stress=StressService(
                self._model_server,
                clock,
                wiring.load_profile(settings),
                wiring.thresholds(settings),
                settings.reward_timeout_s,
            ),
        )
        self._pipeline = Pipeline(
            StageRunner(parts, self.metrics),
            self._journal,
            self._changes,
            self._workers.list_known if settings.role == "worker" else _nobody,
            self._deployments.waits_for,
            database_url=settings.workflow_database_url,
            executor_id=settings.executor_id,
            concurrency=settings.pipeline_concurrency,
        )
        usage = UsageReader(
            self.submissions.owners, self.scores.counts.kept, self.conversations.open_streams
        )
        self._autoscaler = Autoscaler(
            self._deployments,
            self._model_server,
            clock,
            sleeper,
            usage,
            scaling,
            self._leadership.is_leading,
        )
        self._reconciler = Reconciler(
            self._deployments,
            self._cluster,
            clock,
            self._give_up,
            restart_limit=settings.restart_limit,
            ready_timeout_s=settings.ready_timeout_s,
            is_leader=self._leadership.is_leading,
            regions=wiring.regions(settings),
            admit=Admission(
                self.database,
                clock,
                self._cluster,
                self._deployments,
                sleeper,
                usage,
                scaling.budget,
                scaling.feedback_target,
            ).step,
        )
        self._heartbeat = Heartbeat(
            self._workers,
            self._pipeline.take_over,
            self._duties(),
            self._deployments.note_reconciler,
        )
        self._census = Census(self.metrics, clock, self._counts())
        self.health = Health(
            self.database, None if settings.role == "worker" else self.routing.age_s
        )
        self._changes.subscribe(lambda _id, _status: self.routing.note_change())

    async def check(self) -> None:
        """StoreUnreachable, ClusterUnreachable or ClusterRefused where the platform cannot work; before anything is started."""
        await self._store.check()
        await self._cluster.check()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Up: database, then the loops of this process's role. Down: the other way round."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.database.close)
            await self._prepare_database()
            stack.push_async_callback(self._model_server.close)
            stack.push_async_callback(self._prompts.close)
            stack.push_async_callback(self.replies.close)
            if self.settings.role != "api":
                stack.push_async_callback(self._cluster.close)
                await self._cluster.start()
            if self.settings.role == "worker":
                await self._heartbeat.enter()
            for loop in self._loops():
                stack.push_async_callback(loop.stop)
                await loop.start()
            yield

    async def _prepare_database(self) -> None:
        if self.settings.does_migrate:
            await upgrade(self.database)
        else:
            await wait_until_current(self.database, self.settings.schema_wait_s)
        if self.settings.role == "all":
            self.first_key = await self.accounts.create_first_key()

    def _loops(self) -> tuple[Loop, ...]:
        """What runs beside the requests, in the order in which it starts.

        The pipeline is first: DBOS makes its tables in this very thread, with indexes for which PostgreSQL waits
        until every open transaction has ended, and those of our other loops could not end meanwhile.
        """
        match self.settings.role:
            case "api":
                self._deployments.note_reconciler(False)
                return (self.routing, self._running, self.conversations.forgetting)
            case "worker":
                self._deployments.note_reconciler(False)
                return (self._pipeline, self._heartbeat, self._census)
            case _:
                asked = (self.routing, self._running, self.conversations.forgetting)
                return (self._pipeline, *self._duties(), *asked, self._census)

    def _duties(self) -> tuple[Loop, ...]:
        """The loops that one process runs for all. The first decides whether the others may act."""
        return (
            self._leadership,
            self._reconciler,
            self._autoscaler,
            self._collector,
            self.notifications.loop,
            self._copying,
            self.scores.keeper,
        )

    def _counts(self) -> Counts:
        return Counts(
            submissions=self.submissions.count_by_status,
            oldest_queued=self.submissions.oldest_queued,
            deployments=self._deployments.count_by_phase,
            workers=self._workers.count_living,
        )

    async def _give_up(self, submission_id: str, log_lines: list[str]) -> None:
        await self._journal.fail_published(
            submission_id,
            ModelServerDied(
                f"The model server kept dying after it was published: {evidence(log_lines)}",
                hint="`guanaco redeploy` tries again.",
            ),
        )


async def _nobody() -> tuple[str, ...]:
    """Outside the role of a worker, a process works alone."""
    return ()
