"""Deployments: which submissions should be served, and where those are that can be.

A row in the database is the wish; the cluster has the fact; the reconciler brings them together.
``endpoints.py`` keeps where they are served.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.recipes import Recipe
from guanaco.submissions import Unserved
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, DeploymentSpec, Trouble
from guanaco_server.costs.meter import CostMeter
from guanaco_server.database.database import Database
from guanaco_server.deployments import engines, queries, requests
from guanaco_server.deployments.adapters import AdapterPlaces
from guanaco_server.deployments.deployment import PUBLISHED, Deployment
from guanaco_server.deployments.endpoints import KnownEndpoints
from guanaco_server.deployments.health import DeploymentHealth, await_order, look
from guanaco_server.deployments.machines import ArtifactMachines, machines_of
from guanaco_server.deployments.model_servers.model_server import (
    CannotSleep,
    ModelServer,
    ModelServerFault,
    ServerBusy,
    SleepLevel,
    SleepOrder,
    SwapOrder,
)
from guanaco_server.deployments.specs import (
    EngineOptions,
    RecipeChooser,
    deployment_name,
    is_remote,
    model_server_spec,
)
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase, SpareServer
from guanaco_server.deployments.versions import beside, is_beside
from guanaco_server.engine.artifacts.source import URLS_VARIABLE
from guanaco_server.formats.control import ASLEEP, TOKEN_VARIABLE
from guanaco_server.runtime.clock import Clock

RENEW_S = 1_200  # a third of the shortest life that a presigned URL has
RENEW_AGAIN_S = 60
LONGEST_START_S = 3_600  # what took longer was no start: the platform was down meanwhile
STARTS = "A model server is starting."
TAKING_OVER = {  # who may take over a server, and its phase afterwards
    Phase.WAKING: Phase.RESTARTING,
    Phase.WAITING: Phase.STARTING,
    Phase.STARTING: Phase.STARTING,
}


@dataclass(frozen=True)
class KeptServers:
    """Says whether servers without users may stay. Requests for servers are remembered for ``remembered_s``; 0 is not at all."""

    has_any: bool = False
    remembered_s: float = 0


HasOlderGateway = Callable[[AsyncSession, datetime], Awaitable[bool]]


class DeploymentService(KnownEndpoints):
    def __init__(
        self,
        database: Database,
        clock: Clock,
        cluster: Cluster,
        model_server: ModelServer,
        store: ArtifactStore,
        configs: ArtifactConfigs,
        engine: EngineOptions,
        has_older_gateway: HasOlderGateway,
        is_budgeted: bool,
        kept: KeptServers,
    ) -> None:
        """``kept``: the server of a submission that is torn down may stay, for the next one of its shape.

        ``is_budgeted``: a new deployment waits until there is room for it. While an older gateway runs, no submission joins another's engine.
        """
        super().__init__(database)
        self._clock = clock
        self._cluster = cluster
        self._model_server = model_server
        self._store = store
        self._engine = engine
        self._has_older_gateway = has_older_gateway
        self._kept = kept
        self._first_phase = Phase.WAITING if is_budgeted else Phase.STARTING
        self.meter = CostMeter(engine.recipes.fleet.prices)
        self.adapters = AdapterPlaces(database, store, model_server, self.look)
        self.machines = ArtifactMachines(database, clock)
        self.recipes = RecipeChooser(store, configs, engine.recipes)
        self._begun: set[str] = set()  # names of servers that this process has had started
        self._renew_at: dict[str, datetime] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wish(self, deployment: Deployment) -> Deployment:
        """Record that this should be served, and return it with the engine that serves it: one that others use, or its own.

        Its server counts as starting until ``mark_ready``; what has room keeps it, and so does what joins others that have it.
        """
        async with self._database.write() as session:
            given = await self.wish_within(session, deployment)
        self.note_given(given)
        return given

    async def base_of(self, artifact_key: str | None) -> str | None:
        """Return the artifact on whose servers this one is served; None for a whole model."""
        manifest = await self._store.find(artifact_key) if artifact_key else None
        return manifest.adapter.base_key if manifest and manifest.adapter else None

    async def has_engine(self, deployment: Deployment) -> bool:
        """Return whether there is an engine that this deployment would join."""
        digest = engines.engine_digest(deployment, self._engine)
        async with self._database.read() as session:
            return digest is not None and await queries.open_engine(session, digest) is not None

    async def base_keys(self) -> set[str]:
        """Read the artifacts of the servers that serve adapters."""
        async with self._database.read() as session:
            return await queries.base_keys(session)

    @property
    def can_add_adapters(self) -> bool:
        """Return whether model servers of this platform have control routes."""
        return self._cluster.has_control_routes

    async def expect_server(self) -> None:
        """Have the cluster prepare for a server that will be requested in some seconds."""
        await self._cluster.expect_server()

    async def waiting_in_pools(self) -> dict[str, int]:
        """Count the prepared servers that wait in the cluster's pools."""
        return await self._cluster.waiting_in_pools()

    async def wish_within(self, session: AsyncSession, deployment: Deployment) -> Deployment:
        """Do as ``wish`` within the caller's transaction. The caller then notes that there are no replicas."""
        now = self._clock.now()
        await self.meter.end(session, deployment.submission_id, now)
        row = await queries.by_submission(session, deployment.submission_id)
        # One that is quantized is first served as it is, for its quantization to be compared with.
        is_new = (
            row is None or row.run != deployment.run or row.quantization != deployment.quantization
        )
        if row is not None:
            await self.divide_costs(session, row)
        has_room = row is not None and row.run == deployment.run and row.phase.has_server
        engine = await engines.assign(
            session,
            deployment,
            self._engine,
            now,
            may_join=not await self._has_older_gateway(session, now),
        )
        if row is not None and row.server_key != engine:
            await engines.leave(session, row)
        if row is None:
            row = DeploymentRow(submission_id=deployment.submission_id)
            session.add(row)
        row.run = deployment.run
        row.gpu_count = deployment.gpu_count
        row.waits_for = row.share = row.takes_since = None
        row.server = engine if engine != deployment.submission_id else None
        row.artifact_key, row.base_key = deployment.artifact_key, deployment.base_key
        row.max_model_tokens = deployment.max_model_tokens
        row.quantization = deployment.quantization
        row.recipe, row.developer = deployment.recipe, deployment.developer
        row.queue = deployment.queue
        with session.no_autoflush:
            others = await queries.others_of_engine(session, row)
        served = [other for other in others if other.phase.has_server]
        has_room = has_room or bool(served)
        row.wanted_replicas = max(
            [deployment.replicas, *(other.wanted_replicas for other in served)]
        )
        row.applied_replicas = max(
            (other.applied_replicas for other in served), default=row.wanted_replicas
        )
        row.phase, row.restarts = Phase.STARTING if has_room else self._first_phase, 0
        row.endpoints, row.endpoint = [], None
        row.trouble = row.problem = row.unserved_since = None
        row.updated_at = now
        if is_new and not others and not deployment.is_private:
            await self._note_request(session, Deployment.of(row))
        return replace(deployment, server=row.server)

    def note_given(self, given: Deployment) -> None:
        """Note which engine a deployment was given; it has no replicas yet."""
        artifacts = given.artifact_key, given.base_key
        self.note_replicas(given.submission_id, (), given.server_key, artifacts)

    async def withdraw(
        self, session: AsyncSession, submission_id: str, *, is_torn_down: bool = False
    ) -> None:
        """Record in the caller's transaction that this should no longer be served. The reconciler stops the server that nobody uses any more.

        The server of one that served well until it was torn down may stay.
        """
        await self.meter.end(session, submission_id, self._clock.now())
        row = await queries.by_submission(session, submission_id)
        if row is not None:
            await engines.leave(session, row, self._spare_of(row) if is_torn_down else None)
            await self.divide_costs(session, row)
        await queries.remove(session, submission_id)
        self.note_replicas(submission_id, ())
        self.woken.set()

    def _spare_of(self, row: DeploymentRow) -> SpareServer | None:
        """Return its server as one without users; None if it is not to stay."""
        is_well = row.phase is Phase.READY and row.endpoints and row.trouble is None
        is_taken_over = not row.is_beside and row.wanted_replicas == 1
        if not (self._kept.has_any and is_well and is_taken_over):
            return None
        return Deployment.of(row).as_spare(self._clock.now())

    async def list_spares(self) -> list[EngineRow]:
        """Return the engines that stay without users."""
        async with self._database.read() as session:
            return list(await queries.spares(session))

    async def requested_servers(self) -> Sequence[SpareServer]:
        """Return the servers that were asked for lately, the latest first."""
        async with self._database.read() as session:
            return await requests.since(session, self._remembered_since())

    async def has_room_ahead(self, deployment: Deployment) -> bool:
        """Return whether the cluster can start this server ahead of demand without a loss for what is served."""
        return await self._cluster.has_room_ahead(await self._spec(deployment))

    async def start_ahead(self, deployment: Deployment) -> None:
        """Start a server that no deployment uses yet. Whoever takes it before the end starts it instead."""
        async with self._database.write() as session:
            await engines.begin_spare(session, deployment, self._engine, self._clock.now())
        async with self._locks[deployment_name(deployment.submission_id)]:
            async with self._database.read() as session:
                engine = await session.get(EngineRow, deployment.submission_id)
            if engine is not None and engine.spare is not None:
                await self._cluster.apply_deployment(await self._spec(deployment))

    async def note_spare_ready(self, engine: str) -> None:
        """Record that a server which was started ahead can be taken over."""
        async with self._database.write() as session:
            await engines.note_spare_ready(session, engine)

    async def _note_request(self, session: AsyncSession, deployment: Deployment) -> None:
        """Note that a server of its own was asked for, which one that waits could have been."""
        is_alike = deployment.replicas == 1 and not is_beside(deployment.submission_id)
        if self._kept.remembered_s and is_alike:
            now = self._clock.now()
            await requests.note(session, deployment, now, self._remembered_since())

    def _remembered_since(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self._kept.remembered_s)

    async def end_spare(self, engine: str) -> None:
        """Stop a server without users, unless somebody has taken it meanwhile."""
        async with self._database.write() as session:
            await engines.end_spare(session, engine)
        await self.stop_unwanted(deployment_name(engine))

    async def stop_withdrawn(self, submission_id: str) -> None:
        """Stop the server of a deployment that was withdrawn, before returning."""
        await self.stop_unwanted(deployment_name(submission_id))

    async def find(self, submission_id: str) -> DeploymentRow | None:
        async with self._database.read() as session:
            return await queries.by_submission(session, submission_id)

    async def has_wish(self, submission_id: str, run: int) -> bool:
        """Return whether this run of the submission has a deployment, with room or without."""
        row = await self.find(submission_id)
        return row is not None and row.run == run

    async def replica_count(self, submission_id: str) -> int:
        """Return how many replicas serve the submission, or should; 1 if it is not served."""
        row = await self.find(submission_id)
        return row.wanted_replicas if row else 1

    async def served_recipe(self, submission_id: str) -> Recipe | None:
        row = await self.find(submission_id)
        return row.recipe if row else None

    async def waits_for(self, submission_id: str) -> str | None:
        """Return in a sentence why it has no room yet, or no place in the queue of its cluster; None if it has room."""
        row = await self.find(submission_id)
        if row is not None and row.phase is Phase.STARTING:
            seen = await self.look(row.server_key)
            return seen.problem if seen.trouble is Trouble.QUEUED else None
        if row is None or row.phase is not Phase.WAITING:
            return None
        return row.waits_for or "The next look for room has not come yet."

    async def list_wishes(self) -> list[DeploymentRow]:
        async with self._database.read() as session:
            return list(await queries.all_rows(session))

    async def unserved_within(self, session: AsyncSession, submission_id: str) -> Unserved | None:
        """Return why no model server answers for a submission that should be served."""
        row = await queries.by_submission(session, submission_id)
        if row is None or row.unserved_since is None or row.phase not in PUBLISHED:
            return None
        return Unserved(
            since=row.unserved_since, trouble=row.trouble, problem=row.problem or STARTS
        )

    async def apply(self, deployment: Deployment) -> None:
        """Make the server run, unless the wish was withdrawn meanwhile, or another run or version has taken its place."""
        name = deployment_name(deployment.server_key)
        async with self._locks[name]:
            if await self._is_current(deployment):
                await self._cluster.apply_deployment(await self._spec(deployment))
                self._begun.add(name)
                self._note_renewed(name)

    async def take_server(self, submission_id: str, engine: str) -> bool:
        """Give a server without users, or whose deployments all sleep, to one that wakes or is new. False if either has changed meanwhile.

        The reconciler has it swapped for one that wakes, the pipeline stage for one that is new. A private one gets none.
        """
        async with self._database.write() as session:
            await engines.lock(session)
            row = await queries.locked(session, submission_id)
            if row is None or row.phase not in TAKING_OVER or row.server_key == engine:
                return False
            if row.phase is not Phase.WAKING and not await engines.is_shared(session, row):
                return False
            idle = await queries.of_engine(session, engine)
            own_users = await queries.others_of_engine(session, row)
            given = await session.get(EngineRow, engine)
            is_there = bool(idle) or (given is not None and given.spare is not None)
            is_free = is_there and all(user.phase is Phase.SLEEPING for user in idle)
            if not is_free or any(other.phase.has_server for other in own_users):
                return False
            await engines.exchange(session, row.server_key, engine)
            await engines.note_taken(session, row)
            for user in (row, *own_users, *idle):
                self._engines[user.submission_id] = user.server_key
            return await queries.admit(
                session, submission_id, row.phase, TAKING_OVER[row.phase], self._clock.now()
            )

    async def has_taken_over(self, row: DeploymentRow) -> bool:
        """Return whether the deployment's server was another one's before, so that a swap gives it what it lacks."""
        async with self._database.read() as session:
            engine = await session.get(EngineRow, row.server_key)
        is_noted = engine is not None and engine.taken_by == beside(row.owner, row.run)
        return is_noted or row.server is not None  # a worker of the version before notes nothing

    async def holds_another(self, row: DeploymentRow, endpoints: Sequence[str]) -> bool:
        """Return whether one of these servers of the deployment holds another artifact than it should."""
        if not self._cluster.can_relabel:
            return False
        try:
            held = [await self._model_server.held_artifact(endpoint) for endpoint in endpoints]
        except ModelServerFault:
            return False  # the next look tells whether it answers
        return any(one not in (None, row.held_key) for one in held)

    async def is_asleep(self, endpoints: Sequence[str]) -> bool:
        """Return whether one of these servers has left its GPU's memory."""
        try:
            held = [await self._model_server.held_artifact(endpoint) for endpoint in endpoints]
        except ModelServerFault:
            return False
        return ASLEEP in held

    async def sleep(self, engine: str, endpoint: str, level: SleepLevel, artifact_key: str) -> None:
        """Have the server of deployments that all sleep leave its GPU's memory, if it holds this artifact.

        ServerBusy if one was woken meanwhile; CannotSleep if it holds another artifact, or has no control routes.
        """
        async with self._locks[deployment_name(engine)]:
            async with self._database.read() as session:
                row = await session.get(EngineRow, engine)
                users = await queries.of_engine(session, engine)
            if not users or any(user.phase is not Phase.SLEEPING for user in users):
                raise ServerBusy("Another deployment uses the server by now.")
            if row is None or row.token is None:
                raise CannotSleep("The server was started without control routes.")
            order = self._model_server.sleep(endpoint, SleepOrder(level, artifact_key, row.token))
            await await_order(order, lambda: self.look(engine))

    async def weights_bytes(self, deployment: Deployment) -> int:
        """Return the size of the tensors that its server holds; 0 where the artifact is gone."""
        manifest = await self._store.find(deployment.held_key)
        return manifest.tensors_bytes if manifest else 0

    async def swap(self, row: DeploymentRow, endpoint: str) -> None:
        """Have the server take the deployment's artifact. ServerBusy if it has to be asked again; after any other ModelServerFault it must be replaced."""
        deployment, name = Deployment.of(row), deployment_name(row.server_key)
        async with self._locks[name]:
            if not await self._is_current(deployment):
                raise ServerBusy("Another deployment uses the server by now.")
            spec = await self._spec(deployment)
            token = spec.secrets.get(TOKEN_VARIABLE)
            if token is None:
                raise ModelServerFault("The server was started without control routes.")
            await self._cluster.relabel(spec)
            uri = self._store.uri(deployment.held_key)
            urls = json.loads(spec.secrets.get(URLS_VARIABLE, "{}"))
            order = self._model_server.swap(endpoint, SwapOrder(uri, token, urls))
            await await_order(order, lambda: self.look(row.server_key))

    async def renew_secrets(self, row: DeploymentRow) -> None:
        """Give fresh URLs to servers that the cluster moves by itself, when the last ones are older than RENEW_S."""
        deployment, name = Deployment.of(row), deployment_name(row.server_key)
        if not is_remote(self._store.uri(deployment.held_key)):
            return
        due = self._renew_at.get(name)
        if due is None or self._clock.now() >= due:
            self._note_renewed(name, RENEW_AGAIN_S)  # if this fails
            async with self._locks[name]:
                if await self._is_current(deployment):
                    await self._cluster.renew_secrets(await self._spec(deployment))
                    self._note_renewed(name)

    async def _is_current(self, deployment: Deployment) -> bool:
        """Tell whether this is still the run that is requested. Somebody may have waited long for the cluster since reading it."""
        row = await self.find(deployment.submission_id)
        return row is not None and (row.run, row.server_key) == (
            deployment.run,
            deployment.server_key,
        )

    def _note_renewed(self, name: str, for_s: float = RENEW_S) -> None:
        self._renew_at[name] = self._clock.now() + timedelta(seconds=for_s)

    async def _spec(self, deployment: Deployment) -> DeploymentSpec:
        """Return the specification of the engine's server, which is the same whichever of its deployments asks."""
        async with self._database.read() as session:
            engine = await session.get(EngineRow, deployment.server_key)
            users = await queries.of_engine(session, deployment.server_key)
            near = await machines_of(session, deployment.held_key)
        replicas = max((row.wanted_replicas for row in users), default=deployment.replicas)
        uri = self._store.uri(deployment.held_key)
        manifest = await self._store.find(deployment.held_key)
        spec = model_server_spec(
            deployment.server_key,
            engine.run if engine else deployment.run,
            uri,
            deployment.max_model_tokens,
            self._engine,
            # Fresh ones each time: a server that starts again must not get those that expired.
            await self._store.access(deployment.held_key) if is_remote(uri) else {},
            manifest.size_bytes if manifest else 0,
            deployment.quantization,
            deployment.recipe,
            self.recipes.resources(deployment.recipe),
            deployment.base_key is not None,
        )
        # It is kept with the URLs, because a renewed certificate must not make another spec.
        secrets = {**spec.secrets, **self._store.environment()}
        takes_orders = self._cluster.can_relabel or deployment.base_key is not None
        if engine is not None and engine.token and takes_orders:
            secrets[TOKEN_VARIABLE] = engine.token
        return replace(spec, replicas=replicas, secrets=secrets, queue=deployment.queue, near=near)

    async def stop_unwanted(self, name: str) -> None:
        """Stop a server that is no longer requested; a requested one is left alone."""
        async with self._locks[name]:
            async with self._database.read() as session:
                wished = {row.server_key for row in await queries.all_rows(session)}
                wished.update(row.id for row in await queries.spares(session))
            if name not in map(deployment_name, wished):
                await self._cluster.delete(name)

    async def stop_server(self, server_key: str) -> None:
        """Stop a server with all its replicas. If it is requested, the reconciler starts it again."""
        name = deployment_name(server_key)
        async with self._locks[name]:
            await self._cluster.delete(name)

    async def stop_server_of(self, row: DeploymentRow) -> bool:
        """Do as ``stop_server``, unless the deployment has another run or phase by now. Return whether it was stopped."""
        name = deployment_name(row.server_key)
        async with self._locks[name]:
            if is_still := _is_as_seen(await self.find(row.submission_id), row):
                await self._cluster.delete(name)
            return is_still

    async def stop_if_unused(self, row: DeploymentRow) -> bool:
        """Stop the server of a deployment that should have none, unless another one that uses it should. Return whether it was stopped."""
        name = deployment_name(row.server_key)
        async with self._locks[name]:
            async with self._database.read() as session:
                users = await queries.of_engine(session, row.server_key)
            is_used = any(user.phase.has_server for user in users)
            if not is_used:
                await self._cluster.delete(name)
        return not is_used

    async def is_served_for_others(self, key: str) -> bool:
        """Return whether its engine serves other deployments, so that the reconciler keeps it running."""
        async with self._database.read() as session:
            row = await queries.by_submission(session, key)
            others = await queries.others_of_engine(session, row) if row else ()
        return any(other.phase in PUBLISHED for other in others)

    async def ready_on_same_engine(self, key: str) -> list[tuple[str, int]]:
        """Return submission and run of the other deployments that are ready on its engine."""
        async with self._database.read() as session:
            row = await queries.by_submission(session, key)
            others = await queries.others_of_engine(session, row) if row else ()
        return [(other.owner, other.run) for other in others if other.phase is Phase.READY]

    async def ready_since(self, key: str, endpoint: str) -> datetime | None:
        """Return since when a replica serves that is ready; None for one that is away."""
        row = await self.find(key)
        if row is None or row.phase is not Phase.READY or endpoint not in row.endpoints:
            return None
        return row.updated_at

    async def stop_replica(self, server_key: str, endpoint: str) -> bool:
        """Stop one replica that hangs, and no other; False where its cluster does that by itself."""
        name = deployment_name(server_key)
        async with self._locks[name]:
            return await self._cluster.stop_replica(name, endpoint)

    async def look(self, server_key: str) -> DeploymentHealth:
        return await look(self._cluster, self._model_server, deployment_name(server_key))

    async def logs(self, server_key: str, offset: int) -> tuple[list[str], int]:
        return await self._cluster.logs(deployment_name(server_key), offset)

    async def mark(
        self,
        submission_id: str,
        phase: Phase,
        endpoints: Sequence[str] = (),
        restarts: int | None = None,
        *,
        seen: DeploymentRow | None = None,
    ) -> None:
        """Record the phase; ``READY`` with endpoints makes the gateway use them, anything else makes it stop.

        Do nothing if the deployment has another run or phase than when it was ``seen``: it was put to sleep, or submitted again, meanwhile.
        """
        async with self._database.write() as session:
            await engines.lock(session)
            row = await queries.locked(session, submission_id)
            if row is None or (seen is not None and not _is_as_seen(row, seen)):
                return
            now = self._clock.now()
            took_s = (now - row.updated_at).total_seconds()
            if phase is Phase.READY and row.phase.is_getting_ready:
                self._note_start(row, took_s)
                row.wake_s = took_s if took_s < LONGEST_START_S else row.wake_s
            row.phase, row.updated_at = phase, now
            row.endpoints, row.endpoint = list(endpoints), next(iter(endpoints), None)
            is_served = bool(endpoints) or phase not in PUBLISHED
            row.unserved_since = None if is_served else row.unserved_since or now
            if restarts is not None:
                row.restarts = restarts
            await self.meter_replicas(session, row)
            engine, artifacts = row.server_key, (row.artifact_key, row.base_key)
        self.note_replicas(submission_id, tuple(endpoints), engine, artifacts)

    def _note_start(self, row: DeploymentRow, took_s: float) -> None:
        """Note how long the start took. A wake without one, by a swap or by a server that was kept, tells nothing of the next."""
        name = deployment_name(row.server_key)
        is_start = name in self._begun or took_s > (row.start_s or 0)
        self._begun.discard(name)
        if is_start and took_s < LONGEST_START_S:
            row.start_s = took_s

    async def mark_ready(self, submission_id: str, endpoint: str) -> None:
        """Record that the server has generated text. The gateway may use it, and the reconciler takes it over."""
        await self.mark(submission_id, Phase.READY, (endpoint,))

    async def mark_applied(self, submission_id: str, replicas: int) -> None:
        """Record how many replicas the cluster was told to run, for all that share them. They cost from now on."""
        async with self._database.write() as session:
            await engines.lock(session)
            row = await queries.locked(session, submission_id)
            if row is not None:
                for user in (row, *await queries.others_of_engine(session, row)):
                    user.applied_replicas = replicas
                    await self.meter_replicas(session, user)

    async def publish_replicas(self, row: DeploymentRow, endpoints: tuple[str, ...]) -> None:
        """Publish the endpoints that answer now. A change is written down for the gateways of other processes."""
        if tuple(row.endpoints) != endpoints:
            unserved = None if endpoints else self._clock.now()
            async with self._database.write() as session:
                await queries.note_endpoints(session, row.submission_id, endpoints, unserved)
        self.note_replicas(
            row.submission_id, endpoints, row.server_key, (row.artifact_key, row.base_key)
        )

    async def note(self, submission_id: str, **columns: Any) -> None:
        """Write columns that do not change the phase."""
        async with self._database.write() as session:
            await queries.note(session, submission_id, **columns)

    async def put_to_sleep(self, submission_id: str, unused_since: datetime) -> bool:
        """Scale a deployment to zero, unless it was used after ``unused_since`` or is no longer ready."""
        async with self._database.write() as session:
            slept = await queries.put_to_sleep(
                session, submission_id, unused_since, self._clock.now()
            )
            if slept:
                await self.meter.end(session, submission_id, self._clock.now())
                row = await queries.by_submission(session, submission_id)
                assert row is not None, "it sleeps"
                await self.divide_costs(session, row)
        if slept:
            self.note_replicas(submission_id, ())
            self.woken.set()
        return slept

    async def wake(self, submission_id: str) -> DeploymentRow | None:
        """Ask for room for a deployment that sleeps, and return its row."""
        async with self._database.write() as session:
            has_woken = await queries.wake(session, submission_id, self._clock.now())
            row = await queries.by_submission(session, submission_id)
            if has_woken and row is not None:
                others = await queries.others_of_engine(session, row)
                if not any(other.phase is not Phase.SLEEPING for other in others):
                    await self._note_request(session, Deployment.of(row))
            return row

    async def admit(self, submission_id: str, from_phase: Phase, to_phase: Phase) -> bool:
        """Give a deployment that waits its room, unless its phase has changed meanwhile."""
        async with self._database.write() as session:
            return await queries.admit(
                session, submission_id, from_phase, to_phase, self._clock.now()
            )

    async def record_use(self, tokens: Mapping[str, float], busy_s: Mapping[str, float]) -> None:
        """Write down by deployment which tokens it has used, and where GPUs are shared, what divides their cost."""
        users = Counter(self._engines.values())
        shared = {engine: busy_s[engine] for engine in sorted(busy_s) if users[engine] > 1}
        divided = {key: tokens[key] for key in sorted(tokens) if self.engine_of(key) in shared}
        is_divided = bool(shared and self._engine.recipes.fleet.gpus)
        if not tokens and not is_divided:
            return
        async with self._database.write() as session:
            await engines.lock(session)
            for key in sorted(tokens):
                await queries.add_tokens(session, key, tokens[key])
            if is_divided:
                await self.meter.note_use(session, divided, shared, self._clock.now())

    async def record_traffic(self, times: Mapping[str, datetime]) -> None:
        """Write down when each of these submissions was last asked for something."""
        async with self._database.write() as session:
            for submission_id in sorted(times):
                await queries.note_traffic(session, submission_id, times[submission_id])

    async def divide_costs(self, session: AsyncSession, row: DeploymentRow) -> None:
        """Divide what its engine costs between all that use it now."""
        users = [row, *await queries.others_of_engine(session, row)]
        keys = [user.submission_id for user in users]
        await self.meter.divide(session, row.server_key, keys, self._clock.now())

    async def meter_replicas(self, session: AsyncSession, row: DeploymentRow) -> None:
        """Begin to count what its replicas cost, if it is ready, within the caller's transaction."""
        if row.phase is Phase.READY:
            await self.meter.begin(
                session,
                row.submission_id,
                row.developer,
                row.recipe,
                self._clock.now(),
                row.applied_replicas,
            )
            await self.divide_costs(session, row)


def _is_as_seen(row: DeploymentRow | None, seen: DeploymentRow) -> bool:
    return row is not None and (row.run, row.phase, row.server_key) == (
        seen.run,
        seen.phase,
        seen.server_key,
    )
