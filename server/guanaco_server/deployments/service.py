"""Deployments: which submissions should be served, and what is known of those that are.

A row in the database is the wish; the cluster has the fact; the reconciler brings them together.
``endpoints.py`` keeps where they are served; ``engines/servers.py`` gives the orders to their servers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.recipes import Recipe
from guanaco.submissions import Unserved
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, Trouble
from guanaco_server.costs.meter import CostMeter
from guanaco_server.database.database import Database, after_commit
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import PUBLISHED, Deployment
from guanaco_server.deployments.endpoints import KnownEndpoints
from guanaco_server.deployments.engines import assignment
from guanaco_server.deployments.engines.adapters import AdapterPlaces
from guanaco_server.deployments.engines.machines import ArtifactMachines
from guanaco_server.deployments.engines.servers import EngineServers
from guanaco_server.deployments.engines.spares import KeptServers, SpareServers
from guanaco_server.deployments.engines.specs import (
    EngineOptions,
    RecipeChooser,
)
from guanaco_server.deployments.model_servers.model_server import (
    ModelServer,
)
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase
from guanaco_server.deployments.versions import beside
from guanaco_server.runtime.clock import Clock

LONGEST_START_S = 3_600  # what took longer was no start: the platform was down meanwhile
STARTS = "A model server is starting."
DIVIDED = "The model server that it shared kept dying, so it gets another one."
TAKING_OVER = {  # who may take over a server, and its phase afterwards
    Phase.WAKING: Phase.RESTARTING,
    Phase.WAITING: Phase.STARTING,
    Phase.STARTING: Phase.STARTING,
}

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
        self._store = store
        self._engine = engine
        self._has_older_gateway = has_older_gateway
        self._first_phase = Phase.WAITING if is_budgeted else Phase.STARTING
        self.meter = CostMeter(engine.recipes.fleet.prices)
        self.recipes = RecipeChooser(store, configs, engine.recipes)
        self.servers = EngineServers(
            database, clock, cluster, model_server, store, engine, self.recipes
        )
        self.spares = SpareServers(database, clock, engine, self.servers, kept)
        self.adapters = AdapterPlaces(database, store, model_server, self.servers.look)
        self.machines = ArtifactMachines(database, clock)

    async def wish(self, deployment: Deployment) -> Deployment:
        """Record that this should be served, and return it with the engine that serves it: one that others use, or its own.

        Its server counts as starting until ``mark_ready``; what has room keeps it, and so does what joins others that have it.
        """
        given = await self._database.write_unit(
            lambda session: self.wish_within(session, deployment)
        )
        self.note_given(given)
        return given

    async def base_of(self, artifact_key: str | None) -> str | None:
        """Return the artifact on whose servers this one is served; None for a whole model."""
        manifest = await self._store.find(artifact_key) if artifact_key else None
        return manifest.adapter.base_key if manifest and manifest.adapter else None

    async def has_engine(self, deployment: Deployment) -> bool:
        """Return whether there is an engine that this deployment would join."""
        digest = assignment.engine_digest(deployment, self._engine)
        async with self._database.read() as session:
            return digest is not None and await queries.open_engine(session, digest) is not None

    async def bases_apart(self) -> list[str]:
        """Return the deployments of bases that have a server without adapters, beside one of their adapters which they could use."""
        async with self._database.read() as session:
            ready = [row for row in await queries.ready(session) if row.is_understood]
            served = {
                row.server_key: row.base_key for row in ready if row.is_adapter and row.endpoints
            }
            found = []
            for row in ready:
                is_plain = row.base_key is None and row.quantization is None and not row.is_beside
                if is_plain and row.artifact_key in served.values():
                    taking = replace(Deployment.of(row), base_key=row.artifact_key)
                    digest = assignment.engine_digest(taking, self._engine)
                    engine = await queries.open_engine(session, digest or "")
                    if engine is not None and engine.id in served:
                        found.append(row.submission_id)
        return found

    async def lost(self) -> list[list[str]]:
        """Return the published deployments whose artifact is no longer in the store; those of one artifact together."""
        async with self._database.read() as session:
            rows = await queries.troubled(session, Trouble.ARTIFACT_MISSING)
        found: defaultdict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row.is_understood and not row.is_beside:
                found[row.artifact_key].append(row.submission_id)
        return list(found.values())

    async def artifact_keys(self) -> set[str]:
        """Read the artifacts that model servers hold, or will when they start again."""
        async with self._database.read() as session:
            return await queries.artifact_keys(session)

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
        left = await queries.others_of_engine(session, row) if row is not None else ()
        engine = await assignment.assign(
            session,
            deployment,
            self._engine,
            now,
            may_join=not await self._has_older_gateway(session, now),
        )
        if row is not None and row.server_key != engine:
            has_room = has_room and not left  # the room is that of the others
            await assignment.leave(session, row)
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
            await self.spares.note_request(session, Deployment.of(row))
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
            await assignment.leave(session, row, self.spares.of(row) if is_torn_down else None)
            await self.divide_costs(session, row)
        await queries.remove(session, submission_id)
        after_commit(session, partial(self.note_replicas, submission_id, ()))
        after_commit(session, self.woken.set)

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
            seen = await self.servers.look(row.server_key)
            return seen.problem if seen.trouble is Trouble.QUEUED else None
        if row is None or row.phase is not Phase.WAITING:
            return None
        return row.waits_for or "The next look for room has not come yet."

    async def list_wishes(self) -> list[DeploymentRow]:
        async with self._database.read() as session:
            return list(await queries.all_rows(session))

    async def standing_within(
        self, session: AsyncSession, submission_id: str
    ) -> tuple[Unserved | None, bool]:
        """Return why no model server answers for a submission that should be served, and whether its own sleeps."""
        row = await queries.by_submission(session, submission_id)
        if row is None:
            return None, False
        unserved = None
        if row.unserved_since is not None and row.phase in PUBLISHED:
            unserved = Unserved(
                since=row.unserved_since, trouble=row.trouble, problem=row.problem or STARTS
            )
        return unserved, row.phase is Phase.SLEEPING

    async def take_server(self, submission_id: str, engine: str) -> bool:
        """Give a server without users, or whose deployments all sleep, to one that wakes or is new. False if either has changed meanwhile.

        The reconciler has it swapped for one that wakes, the pipeline stage for one that is new. A private one gets none.
        """

        async def take(session: AsyncSession) -> bool:
            await assignment.lock(session)
            row = await queries.locked(session, submission_id)
            if row is None or row.phase not in TAKING_OVER or row.server_key == engine:
                return False
            if row.phase is not Phase.WAKING and not await assignment.is_shared(session, row):
                return False
            idle = await queries.of_engine(session, engine)
            own_users = await queries.others_of_engine(session, row)
            given = await session.get(EngineRow, engine)
            is_there = bool(idle) or (given is not None and given.spare is not None)
            is_free = is_there and all(user.phase is Phase.SLEEPING for user in idle)
            if not is_free or any(other.phase.has_server for other in own_users):
                return False
            await assignment.exchange(session, row.server_key, engine)
            await assignment.note_taken(session, row)
            used = {user.submission_id: user.server_key for user in (row, *own_users, *idle)}
            after_commit(session, lambda: self._engines.update(used))
            return await queries.admit(
                session, submission_id, row.phase, TAKING_OVER[row.phase], self._clock.now()
            )

        return await self._database.write_unit(take)

    async def divide(self, rows: Sequence[DeploymentRow]) -> list[str]:
        """Give half of the deployments whose common server keeps dying another one, and return which; none if they have changed meanwhile.

        They wait for room. What has been counted against them, or against those that stay, is forgotten.
        """

        async def divide(session: AsyncSession) -> list[Deployment]:
            await assignment.lock(session)
            found = [await queries.locked(session, row.submission_id) for row in rows]
            users = [row for row in found if row is not None]
            if len(users) < len(rows) or not all(map(DeploymentRow.is_as_seen, users, rows)):
                return []
            stay, leave = users[: (len(users) + 1) // 2], users[(len(users) + 1) // 2 :]
            await assignment.divide(session, leave, self._clock.now())
            for row in stay:
                row.restarts = 0
            for row in leave:
                row.phase, row.restarts, row.updated_at = Phase.WAKING, 0, self._clock.now()
                row.endpoints, row.endpoint = [], None
                row.problem = DIVIDED
                row.unserved_since = row.unserved_since or row.updated_at
                await self.meter.end(session, row.submission_id, row.updated_at)
            await self.divide_costs(session, stay[0])
            return [Deployment.of(row) for row in leave]

        left = await self._database.write_unit(divide)
        if not left:
            return []
        for one in left:
            self.note_given(one)
        self.woken.set()
        return [one.submission_id for one in left]

    async def has_taken_over(self, row: DeploymentRow) -> bool:
        """Return whether the deployment's server was another one's before, so that a swap gives it what it lacks."""
        async with self._database.read() as session:
            engine = await session.get(EngineRow, row.server_key)
        is_noted = engine is not None and engine.taken_by == beside(row.owner, row.run)
        return is_noted or row.server is not None  # a worker of the version before notes nothing

    async def has_been_given_a_server(self, deployment: Deployment) -> bool:
        """Return whether it uses a server that was not started for it: one that others use, or that it has taken over."""
        row = await self.find(deployment.submission_id)
        if row is None or row.run != deployment.run:
            return False
        return await self.is_served_for_others(row.submission_id) or await self.has_taken_over(row)

    async def is_alone(self, deployment: Deployment) -> bool:
        """Return whether its run was given an engine that nobody else may join."""
        async with self._database.read() as session:
            row = await queries.by_submission(session, deployment.submission_id)
            if row is None or (row.run, row.quantization) != (
                deployment.run,
                deployment.quantization,
            ):
                return False
            return not await assignment.is_shared(session, row)

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

        async def write(session: AsyncSession) -> None:
            await assignment.lock(session)
            row = await queries.locked(session, submission_id)
            if row is None or (seen is not None and not row.is_as_seen(seen)):
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
            after_commit(
                session,
                partial(self.note_replicas, submission_id, tuple(endpoints), engine, artifacts),
            )

        await self._database.write_unit(write)

    def _note_start(self, row: DeploymentRow, took_s: float) -> None:
        """Note how long the start took. A wake without one, by a swap or by a server that was kept, tells nothing of the next."""
        is_start = self.servers.take_begun(row.server_key) or took_s > (row.start_s or 0)
        if is_start and took_s < LONGEST_START_S:
            row.start_s = took_s

    async def mark_ready(self, submission_id: str, endpoint: str) -> None:
        """Record that the server has generated text. The gateway may use it, and the reconciler takes it over."""
        await self.mark(submission_id, Phase.READY, (endpoint,))

    async def mark_applied(self, submission_id: str, replicas: int) -> None:
        """Record how many replicas the cluster was told to run, for all that share them. They cost from now on."""

        async def note(session: AsyncSession) -> None:
            await assignment.lock(session)
            row = await queries.locked(session, submission_id)
            if row is not None:
                for user in (row, *await queries.others_of_engine(session, row)):
                    user.applied_replicas = replicas
                    await self.meter_replicas(session, user)

        await self._database.write_unit(note)

    async def publish_replicas(self, row: DeploymentRow, endpoints: tuple[str, ...]) -> None:
        """Publish the endpoints that answer now. A change is written down for the gateways of other processes."""
        if tuple(row.endpoints) != endpoints:
            unserved = None if endpoints else self._clock.now()
            await self._database.write_unit(
                lambda session: queries.note_endpoints(
                    session, row.submission_id, endpoints, unserved
                )
            )
        self.note_replicas(
            row.submission_id, endpoints, row.server_key, (row.artifact_key, row.base_key)
        )

    async def note(self, submission_id: str, **columns: Any) -> None:
        """Write columns that do not change the phase."""
        await self._database.write_unit(
            lambda session: queries.note(session, submission_id, **columns)
        )

    async def put_to_sleep(self, submission_id: str, unused_since: datetime) -> bool:
        """Scale a deployment to zero, unless it was used after ``unused_since`` or is no longer ready."""

        async def put_to_sleep(session: AsyncSession) -> bool:
            slept = await queries.put_to_sleep(
                session, submission_id, unused_since, self._clock.now()
            )
            if slept:
                await self.meter.end(session, submission_id, self._clock.now())
                row = await queries.by_submission(session, submission_id)
                assert row is not None, "it sleeps"
                await self.divide_costs(session, row)
            return slept

        slept = await self._database.write_unit(put_to_sleep)
        if slept:
            self.note_replicas(submission_id, ())
            self.woken.set()
        return slept

    async def wake(self, submission_id: str) -> DeploymentRow | None:
        """Ask for room for a deployment that sleeps, and return its row."""

        async def wake(session: AsyncSession) -> DeploymentRow | None:
            has_woken = await queries.wake(session, submission_id, self._clock.now())
            row = await queries.by_submission(session, submission_id)
            if has_woken and row is not None:
                others = await queries.others_of_engine(session, row)
                if not any(other.phase is not Phase.SLEEPING for other in others):
                    await self.spares.note_request(session, Deployment.of(row))
            return row

        return await self._database.write_unit(wake)

    async def admit(self, submission_id: str, from_phase: Phase, to_phase: Phase) -> bool:
        """Give a deployment that waits its room, unless its phase has changed meanwhile."""
        return await self._database.write_unit(
            lambda session: queries.admit(
                session, submission_id, from_phase, to_phase, self._clock.now()
            )
        )

    async def record_use(self, tokens: Mapping[str, float], busy_s: Mapping[str, float]) -> None:
        """Write down by deployment which tokens it has used, and where GPUs are shared, what divides their cost."""
        users = Counter(self._engines.values())
        shared = {engine: busy_s[engine] for engine in sorted(busy_s) if users[engine] > 1}
        divided = {key: tokens[key] for key in sorted(tokens) if self.engine_of(key) in shared}
        is_divided = bool(shared and self._engine.recipes.fleet.gpus)
        if not tokens and not is_divided:
            return

        async def record(session: AsyncSession) -> None:
            await assignment.lock(session)
            for key in sorted(tokens):
                await queries.add_tokens(session, key, tokens[key])
            if is_divided:
                await self.meter.note_use(session, divided, shared, self._clock.now())

        await self._database.write_unit(record)

    async def record_traffic(self, times: Mapping[str, datetime]) -> None:
        """Write down when each of these submissions was last asked for something."""

        async def record(session: AsyncSession) -> None:
            for submission_id in sorted(times):
                await queries.note_traffic(session, submission_id, times[submission_id])

        await self._database.write_unit(record, is_durable=False)

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
