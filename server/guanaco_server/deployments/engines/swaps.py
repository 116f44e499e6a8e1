"""Swaps: a deployment that wakes, or is new, takes over a server of its shape that nobody needs.

    exchange   the two engines change names in the database, and with them their deployments: who asked has a server now
    relabel    the cluster notes that the server is to be what the deployment wishes
    swap       the server takes the weights (engine/control.py); the reconciler asks for it whenever a server holds
               another artifact than its deployments wish, and the pipeline stage for a deployment that is new

Each step may be the last before the platform ends: the next look sees a server that holds the wrong artifact, and goes on. A
server that cannot be swapped is replaced by a new one. Until a server holds what is wished it answers nobody, because each
request names the artifact that it expects.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from guanaco.errors import CorruptConfig, StoreUnreachable
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, ReplicaPhase
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.assignment import by_engine
from guanaco_server.deployments.engines.specs import EngineOptions, deployment_name
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase, SpareServer
from guanaco_server.formats.shape import shape_of, swap_refusal
from guanaco_server.recipes.recipe import ENGINE_QUANTIZATION

CONFIG = "config.json"
KINDS = ("sleeping", "spare", "starting")  # of servers that nobody uses
KEPT_SHAPES = 4096

logger = logging.getLogger(__name__)


class SwapShapes:
    """Says which deployments may serve from each other's servers. What was read of an artifact is kept."""

    def __init__(
        self, store: ArtifactStore, configs: ArtifactConfigs, engine: EngineOptions
    ) -> None:
        self._store = store
        self._configs = configs
        self._engine = engine
        self._shapes: dict[tuple[str, str | None], str | None] = {}

    async def digest(self, row: Deployment) -> str | None:
        """Return the same text for deployments whose servers differ in their weights alone; None where a swap is not supported."""
        quantization = ENGINE_QUANTIZATION[row.quantization] if row.quantization else None
        known = (row.held_key, quantization)
        if known not in self._shapes:
            if len(self._shapes) >= KEPT_SHAPES:
                self._shapes.clear()
            try:
                self._shapes[known] = await self._read(*known)
            except StoreUnreachable as error:  # asked again at the next look
                logger.warning("the shape of %s is not known: %s", row.held_key[:16], error)
                return None
        shape = self._shapes[known]
        if shape is None or row.replicas != 1 or (row.recipe and row.recipe.gpu_count > 1):
            return None
        facts = {
            "shape": shape,
            "max_model_tokens": row.max_model_tokens,
            "quantization": row.quantization,
            "queue": row.queue,
            "recipe": row.recipe.model_dump(mode="json") if row.recipe else None,
            "command": self._engine.command,
            "args": self._engine.args,
        }
        if row.base_key is not None:
            facts["adapters"] = self._engine.adapters.arguments
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    async def _read(self, artifact_key: str, quantization: str | None) -> str | None:
        manifest = await self._store.find(artifact_key)
        if manifest is None:
            return None
        try:
            config = await self._configs.read(artifact_key, CONFIG)
        except (CorruptConfig, FileNotFoundError):
            return None
        why = swap_refusal(config, quantization)
        if why is not None:
            logger.info("the artifact %s starts in a process of its own: %s", artifact_key, why)
        return shape_of(manifest, config) if why is None else None


@dataclass(frozen=True)
class IdleServer:
    """A model server that nobody uses: all of its deployments sleep, or were just woken and have no room yet.

    One without users is a ``spare``: a submission's that was torn down, or one that was started ahead of demand.
    """

    engine: str
    users: Sequence[DeploymentRow] = ()
    spare: SpareServer | None = None

    @property
    def name(self) -> str:
        """Its name on the cluster."""
        return deployment_name(self.engine)

    @property
    def gpu_count(self) -> int:
        return self.spare.gpu_count if self.spare else max(user.gpu_count for user in self.users)

    @property
    def used_at(self) -> float:
        if self.spare is not None:
            return self.spare.since.timestamp()
        return max((user.last_traffic_at or user.updated_at).timestamp() for user in self.users)

    @property
    def idle_since(self) -> datetime:
        return self.spare.since if self.spare else max(user.updated_at for user in self.users)

    @property
    def deployment(self) -> Deployment:
        """Its artifact, as a deployment of it."""
        if self.spare is None:
            return Deployment.of(self.users[0])
        return Deployment.of_spare(self.engine, self.spare)

    @property
    def is_starting(self) -> bool:
        """Return whether it was started ahead of demand, and does not answer yet."""
        return self.spare is not None and self.spare.is_starting

    @property
    def kind(self) -> str:
        """Return one of ``KINDS``."""
        if self.spare is None:
            return "sleeping"
        return "starting" if self.spare.is_starting else "spare"


Rank = Callable[[IdleServer], tuple[float, ...]]


def least_recently_used(server: IdleServer) -> tuple[float, ...]:
    """Rank first the server that was used longest ago."""
    return (server.used_at,)


def idle_servers(
    rows: Iterable[DeploymentRow],
    spares: Iterable[EngineRow],
    phases: Sequence[Phase] = (Phase.SLEEPING,),
) -> list[IdleServer]:
    """Return the spares, and the servers of which every deployment is in one of these phases, whether they run or not."""
    asleep = [
        IdleServer(engine, users)
        for engine, users in by_engine(rows).items()
        if all(user.phase in phases and user.is_understood for user in users)
    ]
    return [IdleServer(engine.id, spare=engine.spare) for engine in spares] + asleep


class IdleServers:
    """Finds servers that run although every deployment of theirs sleeps: kept hot, or about to be stopped."""

    def __init__(self, cluster: Cluster, shapes: SwapShapes) -> None:
        self._cluster = cluster
        self._shapes = shapes

    async def find_for(
        self,
        row: DeploymentRow,
        rows: Iterable[DeploymentRow],
        spares: Iterable[EngineRow],
        rank: Rank = least_recently_used,
    ) -> IdleServer | None:
        """Return the server that this deployment may take over: a spare, or the one of the lowest rank. Return None if its own still runs."""
        if not self._cluster.can_relabel or row.is_beside:
            return None
        running = set(await self._cluster.list_deployments())
        idle = [
            server
            for server in idle_servers(rows, spares)
            if server.engine != row.server_key and server.name in running and not server.is_starting
        ]
        wanted = await self._shapes.digest(Deployment.of(row)) if idle else None
        if wanted is None:
            return None
        own = deployment_name(row.server_key)
        if own in running and await self._runs(own):
            return None
        for server in sorted(idle, key=lambda one: (bool(one.users), *rank(one))):
            held = await self._shapes.digest(server.deployment)
            if held == wanted and await self._runs(server.name):
                return server
        return None

    async def running(
        self, rows: Iterable[DeploymentRow], spares: Iterable[EngineRow]
    ) -> list[IdleServer]:
        """Return the servers that run and that nobody uses."""
        names = set(await self._cluster.list_deployments())
        asleep = (Phase.SLEEPING, Phase.WAKING)
        return [server for server in idle_servers(rows, spares, asleep) if server.name in names]

    async def count(
        self, rows: Iterable[DeploymentRow], spares: Iterable[EngineRow]
    ) -> dict[str, int]:
        """Count the servers that run and that nobody uses, by kind."""
        found = Counter(server.kind for server in await self.running(rows, spares))
        return {kind: found[kind] for kind in KINDS}

    async def shape_of(self, deployment: Deployment) -> str | None:
        """Return the same text for deployments that could take over each other's servers; None for one that could not."""
        return await self._shapes.digest(deployment)

    async def is_usable(self, server: IdleServer) -> bool:
        """Return whether it runs, and others of its shape could take it over."""
        if not self._cluster.can_relabel or not await self._runs(server.name):
            return False
        return await self._shapes.digest(server.deployment) is not None

    async def _runs(self, name: str) -> bool:
        seen = await self._cluster.observe(name)
        if seen is None or seen.phase is not ReplicaPhase.RUNNING:
            return False
        return seen.is_swappable and len(seen.replicas) <= 1
