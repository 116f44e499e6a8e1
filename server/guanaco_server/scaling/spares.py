"""Starts model servers ahead of demand: spares of the shapes that were asked for lately (decision 0072).

A shape is due one spare for every ``requests`` model servers of it that were asked for lately. One is started when

- fewer than ``hot_engines`` servers without users run, and none of them is starting;
- nobody waits for room, and the budget holds it beside all that is served;
- where servers share a machine, none is getting ready, and no submission is being checked;
- the cluster has room for it: memory on one machine, a second pod that waits in a pool of Kubernetes.

It is a spare like that of a submission that was torn down: ``admission.py`` has it stopped where its room is asked for.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from guanaco_server.clusters.cluster import Cluster
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.swaps import IdleServer, IdleServers
from guanaco_server.deployments.reconciling.backoff import Backoff
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.admission import HotEngines, tenants_of
from guanaco_server.scaling.budget import Budget, Room
from guanaco_server.scaling.usage import UsageReader

LOOK_S = 5.0
AGAIN_S = 60.0  # one shape is tried three times at once, and then this often or less
WAITS = (Phase.WAITING, Phase.WAKING)
SETTLED = (Phase.READY, Phase.SLEEPING)

logger = logging.getLogger(__name__)


class ServersAhead:
    """``step`` belongs to the reconciler, so there is one that decides. ``shares_machine``: what starts slows down what is measured."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        deployments: DeploymentService,
        idle: IdleServers,
        usage: UsageReader,
        budget: Budget,
        hot: HotEngines,
        *,
        requests: int,
        shares_machine: bool,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._deployments = deployments
        self._idle = idle
        self._usage = usage
        self._budget = budget
        self._hot = hot
        self._requests = requests
        self._shares_machine = shares_machine
        self._pace = Backoff(clock, AGAIN_S)
        self._look_at: datetime | None = None

    async def step(self) -> None:
        """Start one server, if one is due and there is room for it."""
        if (
            not (self._hot.most and self._requests and self._cluster.can_relabel)
            or self._is_between_checks()
        ):
            return
        rows = await self._deployments.list_wishes()
        idle = await self._idle.running(rows, await self._deployments.spares.list())
        if len(idle) >= self._hot.most or any(server.is_starting for server in idle):
            return
        due = await self._due(idle)
        if not due or not await self._is_quiet(rows):
            return
        for shape, deployment in due.items():
            if await self._has_room(rows, idle, deployment) and self._pace.allows(shape):
                logger.info(
                    "starting %s ahead: servers of its shape were asked for lately",
                    deployment.submission_id,
                )
                await self._deployments.spares.start_ahead(deployment)
                return

    def _is_between_checks(self) -> bool:
        now = self._clock.now()
        if self._look_at is not None and now < self._look_at:
            return True
        self._look_at = now + timedelta(seconds=LOOK_S)
        return False

    async def _due(self, idle: Sequence[IdleServer]) -> dict[str, Deployment]:
        """Return by shape the servers that are due, the most wanted first. Each holds the artifact of its shape that was asked for last."""
        asked: Counter[str] = Counter()
        latest: dict[str, Deployment] = {}
        for server in await self._deployments.spares.requested():
            deployment = Deployment.of_spare(f"spare-{secrets.token_hex(4)}", server)
            shape = await self._idle.shape_of(deployment)
            if shape is not None:
                asked[shape] += 1
                latest.setdefault(shape, deployment)
        waiting = Counter([await self._idle.shape_of(server.deployment) for server in idle])
        shapes = most_wanted(asked, {shape: waiting[shape] for shape in asked}, self._requests)
        return {shape: latest[shape] for shape in shapes}

    async def _is_quiet(self, rows: Sequence[DeploymentRow]) -> bool:
        """Tell whether nobody waits, and on one machine whether nothing starts or is measured."""
        if any(row.phase in WAITS for row in rows):
            return False
        if not self._shares_machine:
            return True
        usage = await self._usage.read()
        return all(
            row.phase in SETTLED
            and not row.is_beside
            and (known := usage.get(row.owner)) is not None
            and known.ownership.is_published
            for row in rows
        )

    async def _has_room(
        self, rows: Sequence[DeploymentRow], idle: Sequence[IdleServer], deployment: Deployment
    ) -> bool:
        tenants = tenants_of(rows, {}, 0)
        taken = sum((tenant.room for tenant in tenants), Room())
        taken = sum((Room(server.gpu_count, 1) for server in idle), taken)
        if not self._budget.holds(taken + Room(deployment.gpu_count, 1)):
            return False
        return self._hot.has_memory(0) and await self._deployments.servers.has_room_ahead(
            deployment
        )


def most_wanted(asked: Mapping[str, int], waiting: Mapping[str, int], requests: int) -> list[str]:
    """Return the shapes of which fewer servers wait than one for every ``requests`` that were asked for, the most wanted first."""
    due = [shape for shape in asked if asked[shape] >= requests * (waiting[shape] + 1)]
    return sorted(due, key=lambda shape: asked[shape] / (waiting[shape] + 1), reverse=True)
