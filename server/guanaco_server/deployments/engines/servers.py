"""Orders to the servers of engines, and what is seen of them: the cluster runs them, the model server's own port swaps them.

An order is carried out only while what it is for is still wished: whoever gives it may have waited long for the cluster. One
server takes one order at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, DeploymentSpec
from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import DeploymentHealth, await_order, look
from guanaco_server.deployments.engines.machines import machines_of
from guanaco_server.deployments.engines.specs import (
    EngineOptions,
    RecipeChooser,
    deployment_name,
    is_remote,
    model_server_spec,
)
from guanaco_server.deployments.model_servers.model_server import (
    CannotSleep,
    ModelServer,
    ModelServerFault,
    ServerBusy,
    SleepLevel,
    SleepOrder,
    SwapOrder,
)
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase
from guanaco_server.engine.artifacts.source import URLS_VARIABLE
from guanaco_server.formats.control import ASLEEP, TOKEN_VARIABLE
from guanaco_server.runtime.clock import Clock

RENEW_S = 1_200  # a third of the shortest life that a presigned URL has
RENEW_AGAIN_S = 60


class EngineServers:
    """Starts, swaps, puts to sleep, stops and observes the model servers of engines."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        cluster: Cluster,
        model_server: ModelServer,
        store: ArtifactStore,
        engine: EngineOptions,
        recipes: RecipeChooser,
    ) -> None:
        self._database = database
        self._clock = clock
        self._cluster = cluster
        self._model_server = model_server
        self._store = store
        self._engine = engine
        self._recipes = recipes
        self._begun: set[str] = set()  # names of servers that this process has had started
        self._renew_at: dict[str, datetime] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def apply(self, deployment: Deployment) -> None:
        """Make the server run, unless the wish was withdrawn meanwhile, or another run or version has taken its place."""
        name = deployment_name(deployment.server_key)
        async with self._locks[name]:
            if await self._is_current(deployment):
                await self._cluster.apply_deployment(await self._spec(deployment))
                self._begun.add(name)
                self._note_renewed(name)

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

    async def stop_unwanted(self, name: str) -> None:
        """Stop a server that is no longer requested; a requested one is left alone."""
        async with self._locks[name]:
            async with self._database.read() as session:
                wished = {row.server_key for row in await queries.all_rows(session)}
                wished.update(row.id for row in await queries.spares(session))
            if name not in map(deployment_name, wished):
                await self._cluster.delete(name)

    async def stop_withdrawn(self, submission_id: str) -> None:
        """Stop the server of a deployment that was withdrawn, before returning."""
        await self.stop_unwanted(deployment_name(submission_id))

    async def stop_server(self, server_key: str) -> None:
        """Stop a server with all its replicas. If it is requested, the reconciler starts it again."""
        name = deployment_name(server_key)
        async with self._locks[name]:
            await self._cluster.delete(name)

    async def stop_server_of(self, row: DeploymentRow) -> bool:
        """Do as ``stop_server``, unless the deployment has another run or phase by now. Return whether it was stopped."""
        name = deployment_name(row.server_key)
        async with self._locks[name]:
            if is_still := row.is_as_seen(await self._find(row.submission_id)):
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

    async def stop_replica(self, server_key: str, endpoint: str) -> bool:
        """Stop one replica that hangs, and no other; False where its cluster does that by itself."""
        name = deployment_name(server_key)
        async with self._locks[name]:
            return await self._cluster.stop_replica(name, endpoint)

    async def look(self, server_key: str) -> DeploymentHealth:
        return await look(self._cluster, self._model_server, deployment_name(server_key))

    async def logs(self, server_key: str, offset: int) -> tuple[list[str], int]:
        return await self._cluster.logs(deployment_name(server_key), offset)

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

    async def weights_bytes(self, deployment: Deployment) -> int:
        """Return the size of the tensors that its server holds; 0 where the artifact is gone."""
        manifest = await self._store.find(deployment.held_key)
        return manifest.tensors_bytes if manifest else 0

    async def lacks_artifact(self, row: DeploymentRow) -> bool:
        """Return whether the store answers, and does not have what the deployment's server would load."""
        try:
            found = [await self._store.find(key) for key in {row.held_key, row.artifact_key}]
        except StoreUnreachable:
            return False  # the next order to the server tells
        return None in found

    async def has_room_ahead(self, deployment: Deployment) -> bool:
        """Return whether the cluster can start this server ahead of demand without a loss for what is served."""
        return await self._cluster.has_room_ahead(await self._spec(deployment))

    async def start_spare(self, deployment: Deployment) -> None:
        """Start a server that no deployment uses yet, unless somebody has taken it meanwhile, and starts it."""
        async with self._locks[deployment_name(deployment.submission_id)]:
            async with self._database.read() as session:
                engine = await session.get(EngineRow, deployment.submission_id)
            if engine is not None and engine.spare is not None:
                await self._cluster.apply_deployment(await self._spec(deployment))

    def take_begun(self, server_key: str) -> bool:
        """Return whether this process has had the server started since it was last asked."""
        name = deployment_name(server_key)
        has_begun = name in self._begun
        self._begun.discard(name)
        return has_begun

    async def expect_server(self) -> None:
        """Have the cluster prepare for a server that will be requested in some seconds."""
        await self._cluster.expect_server()

    async def waiting_in_pools(self) -> dict[str, int]:
        """Count the prepared servers that wait in the cluster's pools."""
        return await self._cluster.waiting_in_pools()

    @property
    def can_add_adapters(self) -> bool:
        """Return whether model servers of this platform have control routes."""
        return self._cluster.has_control_routes

    async def _is_current(self, deployment: Deployment) -> bool:
        """Tell whether this is still the run that is requested. Somebody may have waited long for the cluster since reading it."""
        row = await self._find(deployment.submission_id)
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
            self._recipes.resources(deployment.recipe),
            deployment.base_key is not None,
        )
        # It is kept with the URLs, because a renewed certificate must not make another spec.
        secrets = {**spec.secrets, **self._store.environment()}
        takes_orders = self._cluster.can_relabel or deployment.base_key is not None
        if engine is not None and engine.token and takes_orders:
            secrets[TOKEN_VARIABLE] = engine.token
        return replace(spec, replicas=replicas, secrets=secrets, queue=deployment.queue, near=near)

    async def _find(self, submission_id: str) -> DeploymentRow | None:
        async with self._database.read() as session:
            return await queries.by_submission(session, submission_id)
