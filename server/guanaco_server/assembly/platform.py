"""One platform process: its roles, what starts and stops in which order, and its background loops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from guanaco.accounts import CreatedKey
from guanaco_server.artifacts.stores.store import wait_until_usable
from guanaco_server.assembly.adapters import Adapters, build_adapters
from guanaco_server.assembly.rooms import Rooms, build_rooms
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.patience import StartPatience
from guanaco_server.database.postgresql.transaction_ids import TransactionIdGauges
from guanaco_server.database.schema import wait_until_current
from guanaco_server.http.health import Health
from guanaco_server.observability.by_submission import ServerStatistics
from guanaco_server.observability.database_gauges import DatabaseGauges, GaugeQueries
from guanaco_server.observability.fleet import FleetGauges, FleetReaders, SubmissionReview
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.data_dir import DataDir, key_of_setting
from guanaco_server.settings import Settings
from guanaco_server.web.room import WebOptions
from guanaco_server.workers.heartbeat import Loop


def build_platform(settings: Settings, data_dir: DataDir) -> Platform:
    """Assemble the platform that the settings describe."""
    return Platform(
        settings,
        Database(settings.sqlalchemy_url, settings.sqlalchemy_replica_url),
        build_adapters(settings, data_dir),
        pseudonym_key=pseudonym_key_of(settings, data_dir),
        web_options=WebOptions.of(settings),
    )


class Platform:
    """All rooms of one process. ``first_key`` is the admin key that this start has made, where none worked."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        adapters: Adapters,
        *,
        pseudonym_key: bytes,
        web_options: WebOptions,
    ) -> None:
        self.settings = settings
        self.database = database
        self.adapters = adapters
        self.metrics = Metrics()
        self.first_key: CreatedKey | None = None
        self.patience = StartPatience(database)
        self.rooms: Rooms = build_rooms(
            database,
            adapters,
            metrics=self.metrics,
            pseudonym_key=pseudonym_key,
            web_options=web_options,
            settings=settings,
        )
        rooms = self.rooms
        self._fleet_gauges = FleetGauges(
            self.metrics,
            fleet_readers(rooms),
            adapters.compute.leadership.is_leading,
            database.watch_commits().wait,
        )
        self._review = SubmissionReview(
            self.metrics, lambda name: bool(rooms.deployments.service.replicas(name))
        )
        self._heartbeat = rooms.workers.heartbeat(
            rooms.pipeline.pipeline.take_over,
            self._duties(),
            rooms.deployments.service.note_reconciler,
        )
        self._database_gauges = DatabaseGauges(
            self.metrics,
            adapters.clock,
            gauge_queries(rooms, settings.role),
            database.watch_commits().wait,
        )
        self._transaction_id_gauges = TransactionIdGauges(database, self.metrics, adapters.clock)
        self.health = Health(
            database, None if settings.role == "worker" else rooms.routing.service.age_s
        )

    async def check(self) -> None:
        """Raise StoreUnreachable, ClusterUnreachable or ClusterRefused where the platform cannot work; start nothing."""
        await wait_until_usable(self.adapters.store)
        await self.adapters.compute.cluster.check()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the database, then the loops of this process's role; stop them in the opposite order.

        A database that goes away during the start is waited for.

        Raises:
            DatabaseUnavailable: It did not come back.
        """
        async with AsyncExitStack() as stack:
            await self._start(stack)
            yield

    async def _start(self, stack: AsyncExitStack) -> None:
        """Have the stack stop what is started."""
        stack.push_async_callback(self.adapters.tracing.close)
        stack.push_async_callback(self.database.close)
        await self._prepare_database()
        stack.push_async_callback(self.adapters.model_server.close)
        stack.push_async_callback(self.rooms.prompts.service.close)
        stack.push_async_callback(self.rooms.artifacts.configs.checker.close)
        stack.push_async_callback(self.rooms.chat.replies.close)
        stack.push_async_callback(self.rooms.chat.personas.close)
        stack.push_async_callback(self.rooms.web.ongoing.close)
        if self.settings.role != "api":
            stack.push_async_callback(self.adapters.compute.cluster.close)
            await self.adapters.compute.cluster.start()
        if self.settings.role == "worker":
            stack.push_async_callback(self.adapters.compute.leadership.close)
            await self.adapters.compute.leadership.watch()
            await self.patience.carry_out(self._heartbeat.enter)
        for loop in self._loops():
            stack.push_async_callback(loop.stop)
            await self.patience.carry_out(loop.start, undo=loop.stop)

    async def _prepare_database(self) -> None:
        if self.settings.does_migrate:
            await self.database.check()
            await self.patience.carry_out(partial(upgrade, self.database))
        else:
            await wait_until_current(self.database)
        self.rooms.workers.absences.begin()
        await self.patience.carry_out(self.rooms.feedback.erasures.replay)
        if self.settings.role == "all":
            self.first_key = await self.patience.carry_out(
                self.rooms.accounts.accounts.create_first_key
            )

    def _loops(self) -> tuple[Loop, ...]:
        """Return the loops that run beside the requests, in the order in which they start.

        The pipeline is first: DBOS makes its tables in this thread, with indexes for which PostgreSQL waits until
        every open transaction has ended, and those of our other loops could not end meanwhile.
        """
        rooms = self.rooms
        serving = (
            rooms.routing.service,
            rooms.experiments.running,
            rooms.chat.conversations.erasure_watch,
            rooms.gateway.places,
            rooms.alerts.recorder,
            self._review,
        )
        match self.settings.role:
            case "api":
                rooms.deployments.service.note_reconciler(False)
                return serving
            case "worker":
                rooms.deployments.service.note_reconciler(False)
                return (
                    rooms.pipeline.pipeline,
                    self._heartbeat,
                    rooms.gateway.places,  # for the checks
                    self._database_gauges,
                    self._transaction_id_gauges,
                )
            case "all":
                return (
                    rooms.pipeline.pipeline,
                    *self._duties(),
                    *serving,
                    self._database_gauges,
                    self._transaction_id_gauges,
                )

    def _duties(self) -> tuple[Loop, ...]:
        """Return the loops that one process runs for all; the cluster's leadership comes first."""
        rooms = self.rooms
        return (
            self.adapters.compute.leadership,
            rooms.reconciler,
            rooms.rollouts.takeovers,
            rooms.rollouts.promotions,
            rooms.rollouts.unasked,
            rooms.scaling.autoscaler,
            rooms.artifacts.collector,
            rooms.notifications.loop,
            rooms.alerts.loop,
            rooms.feedback.copy_loop,
            rooms.leaderboard.loop,
            rooms.duels.outcomes,
            rooms.idempotency.expiry,
            rooms.retention.duty,
            self._fleet_gauges,
        )


def gauge_queries(rooms: Rooms, role: str) -> GaugeQueries:
    async def workers() -> int:
        """Under `guanaco up` this process does a worker's work, and is in no list of workers."""
        return await rooms.workers.workers.count_living() + (role == "all")

    return GaugeQueries(
        submissions=rooms.submissions.service.catalog.count_by_status,
        oldest_queued=rooms.submissions.service.catalog.oldest_queued,
        deployments=rooms.deployments.overview.count_by_phase,
        unserved=rooms.deployments.overview.count_unserved,
        workers=workers,
    )


def fleet_readers(rooms: Rooms) -> FleetReaders:
    overview = rooms.deployments.overview

    async def servers() -> dict[str, ServerStatistics]:
        return {
            submission_id: ServerStatistics(
                sum(load.running for load in loads),
                sum(load.waiting for load in loads),
                max(load.kv_cache_usage for load in loads),
            )
            for submission_id, loads in (await overview.server_loads()).items()
        }

    async def idle() -> dict[str, int]:
        deployments = rooms.deployments.service
        rows, spares = await deployments.list_wishes(), await deployments.spares.list()
        return await rooms.deployments.idle.count(rows, spares)

    return FleetReaders(
        servers=servers,
        gpus_wanted=overview.gpus_wanted,
        pools=rooms.deployments.service.servers.waiting_in_pools,
        idle=idle,
        spending=rooms.costs.service.fleet,
    )


def pseudonym_key_of(settings: Settings, data_dir: DataDir) -> bytes:
    if settings.pseudonym_key is not None:
        return key_of_setting(settings.pseudonym_key.get_secret_value())
    return data_dir.pseudonym_key()
