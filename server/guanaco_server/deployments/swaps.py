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
from collections import defaultdict
from collections.abc import Iterable, Sequence

from guanaco.errors import CorruptConfig, StoreUnreachable
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, ReplicaPhase
from guanaco_server.deployments.specs import EngineOptions, deployment_name
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.formats.shape import shape_of, swap_refusal
from guanaco_server.recipes.recipe import ENGINE_QUANTIZATION

CONFIG = "config.json"
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

    async def digest(self, row: DeploymentRow) -> str | None:
        """Return the same text for deployments whose servers differ in their weights alone; None where a swap is not supported."""
        if row.base_key is not None:  # the adapters there belong to what it holds
            return None
        quantization = ENGINE_QUANTIZATION[row.quantization] if row.quantization else None
        known = (row.artifact_key, quantization)
        if known not in self._shapes:
            if len(self._shapes) >= KEPT_SHAPES:
                self._shapes.clear()
            try:
                self._shapes[known] = await self._read(*known)
            except StoreUnreachable as error:  # asked again at the next look
                logger.warning("the shape of %s is not known: %s", row.artifact_key[:16], error)
                return None
        shape = self._shapes[known]
        if shape is None or row.wanted_replicas != 1 or (row.recipe and row.recipe.gpu_count > 1):
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
        return shape_of(manifest) if why is None else None


class IdleServers:
    """The servers that run although every deployment of theirs sleeps: kept hot, or about to be stopped."""

    def __init__(self, cluster: Cluster, shapes: SwapShapes) -> None:
        self._cluster = cluster
        self._shapes = shapes

    async def find_for(
        self, row: DeploymentRow, rows: Iterable[DeploymentRow]
    ) -> DeploymentRow | None:
        """Return a deployment whose server this one may take over: the one used longest ago. None if its own still runs."""
        if not self._cluster.can_relabel or row.is_beside:
            return None
        running = set(await self._cluster.list_deployments())
        idle = [
            users
            for users in idle_engines(rows)
            if users[0].server_key != row.server_key
            and deployment_name(users[0].server_key) in running
        ]
        wanted = await self._shapes.digest(row) if idle else None
        if wanted is None:
            return None
        own = deployment_name(row.server_key)
        if own in running and await self._runs(own):
            return None
        for users in sorted(idle, key=_last_used):
            donor = users[0]
            name = deployment_name(donor.server_key)
            if await self._shapes.digest(donor) == wanted and await self._runs(name):
                return donor
        return None

    async def _runs(self, name: str) -> bool:
        seen = await self._cluster.observe(name)
        if seen is None or seen.phase is not ReplicaPhase.RUNNING:
            return False
        return seen.is_swappable and len(seen.replicas) <= 1


def idle_engines(rows: Iterable[DeploymentRow]) -> list[Sequence[DeploymentRow]]:
    """Return the deployments of each engine of which all sleep."""
    found: defaultdict[str, list[DeploymentRow]] = defaultdict(list)
    for row in rows:
        found[row.server_key].append(row)
    return [
        users
        for users in found.values()
        if all(row.phase is Phase.SLEEPING and row.is_understood for row in users)
    ]


def hot_engines(rows: Sequence[DeploymentRow], most: int) -> frozenset[str]:
    """Return the names of the servers to keep although nobody uses them: the latest used; none while a deployment waits for room."""
    if any(row.phase in (Phase.WAITING, Phase.WAKING) for row in rows):
        return frozenset()
    latest = sorted(idle_engines(rows), key=_last_used, reverse=True)
    return frozenset(deployment_name(users[0].server_key) for users in latest[:most])


def _last_used(users: Sequence[DeploymentRow]) -> float:
    return max((row.last_traffic_at or row.updated_at).timestamp() for row in users)
