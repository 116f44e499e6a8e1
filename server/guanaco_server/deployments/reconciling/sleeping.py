"""Has model servers on GPUs sleep while all of their deployments do, where they are kept (``hot_engines``).

    serving ── all of its deployments sleep ──▶ level 1: the GPU's memory is free, the weights are in the machine's memory
                                           └──▶ level 2: the same without the weights, where those would take too much memory
    asleep  ── one wakes ──▶ a swap (engines/swaps.py), to the artifact that it kept too, wakes it

A server that is on no GPU refuses the order, and waits as it is. The order names the artifact that is meant: a server that another worker
has had swapped meanwhile refuses it too, and is asked again once it holds what it should. Level 2 is for shapes alone that a swap supports: another server could not be
woken. Spares stay awake, as they may be taken at any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set

from guanaco_server.clusters.cluster import Cluster
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import ServerState
from guanaco_server.deployments.engines.swaps import IdleServers
from guanaco_server.deployments.model_servers.model_server import (
    CannotSleep,
    ModelServerFault,
    SleepLevel,
)
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow
from guanaco_server.recipes.machine import machine_needs

logger = logging.getLogger(__name__)


class SleepingServers:
    """Remembers which servers it has seen to. ``most_bytes`` is the memory that the weights of all may take; ``has_memory`` tells whether the machine has so much left."""

    def __init__(
        self,
        cluster: Cluster,
        deployments: DeploymentService,
        idle: IdleServers,
        most_bytes: int,
        has_memory: Callable[[int], bool],
    ) -> None:
        self._cluster = cluster
        self._deployments = deployments
        self._idle = idle
        self._most_bytes = most_bytes
        self._has_memory = has_memory
        self._kept: dict[
            str, int
        ] = {}  # by engine, the bytes that it keeps; 0 for one that keeps none

    def forget(self, engine: str) -> None:
        """Note that a server is used again, or gone."""
        self._kept.pop(engine, None)

    def forget_all_but(self, engines: Set[str]) -> None:
        """Forget the servers of engines that are gone."""
        for engine in self._kept.keys() - engines:
            del self._kept[engine]

    async def settle(self, users: Sequence[DeploymentRow]) -> None:
        """Have the server of deployments that all sleep leave its GPU's memory, if it can. Each server is asked once."""
        engine, deployment = users[0].server_key, Deployment.of(users[0])
        if engine in self._kept or not self._cluster.can_relabel:
            return
        seen = await self._deployments.servers.look(engine)
        if seen.state is not ServerState.HEALTHY or len(seen.endpoints) != 1:
            return
        (endpoint,) = seen.endpoints
        weights = await self._deployments.servers.weights_bytes(deployment)
        if await self._deployments.servers.is_asleep(
            [endpoint]
        ):  # an earlier process has seen to it
            self._kept[engine] = weights
            return
        level = await self._level(deployment, weights)
        if level is None:
            self._kept[engine] = 0
            return
        try:
            await self._deployments.servers.sleep(engine, endpoint, level, deployment.held_key)
        except CannotSleep:
            if not await self._deployments.servers.holds_another(users[0], seen.endpoints):
                self._kept[engine] = 0
        except ModelServerFault as error:
            logger.info("%s does not sleep yet: %s", engine, error)
        else:
            self._kept[engine] = weights if level is SleepLevel.KEEPS_WEIGHTS else 0
            logger.info("the server of %s sleeps at level %d", engine, level)

    async def _level(self, deployment: Deployment, weights: int) -> SleepLevel | None:
        taken = sum(self._kept.values())
        has_room = taken + weights <= self._most_bytes and _has_memory_for(deployment, weights)
        if has_room and self._has_memory(weights):
            return SleepLevel.KEEPS_WEIGHTS
        is_swappable = await self._idle.shape_of(deployment) is not None
        return SleepLevel.KEEPS_NOTHING if is_swappable else None


def _has_memory_for(deployment: Deployment, weights: int) -> bool:
    """Tell whether its recipe, if it has one, asks for more memory than a server takes that keeps no weights there."""
    recipe = deployment.recipe
    if recipe is None or recipe.machine is None:
        return True
    needed = machine_needs(recipe.gpu_count, weights).memory_bytes
    return recipe.machine.memory_bytes >= needed + weights
