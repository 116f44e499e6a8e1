"""Keeps the cluster as the database wishes: level-triggered, so that it needs no memory of what happened.

Every second, or at once when woken:
- a ready server that exited, or hangs, is started again; after ``restart_limit`` times within
  ``STABLE_S`` it is given up, and its submission fails with what the server last said;
- a server that runs with nobody wishing for it is stopped.
A deployment that is still ``starting`` belongs to its pipeline stage and is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from guanaco.errors import StoreUnreachable
from guanaco_server.background import Background
from guanaco_server.clock import Clock
from guanaco_server.deployments.clusters.cluster import Cluster
from guanaco_server.deployments.service import (
    Deployment,
    DeploymentService,
    ServerState,
    Sighting,
)
from guanaco_server.deployments.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow, Phase

INTERVAL_S = 1.0
STABLE_S = 600  # a server that ran this long has its restarts forgiven
HANGS_AFTER = 5  # failed health checks in a row, each with a timeout of its own

GiveUp = Callable[[str, list[str]], Awaitable[None]]

logger = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        deployments: DeploymentService,
        cluster: Cluster,
        clock: Clock,
        give_up: GiveUp,
        *,
        restart_limit: int,
        ready_timeout_s: float,
    ) -> None:
        self._deployments = deployments
        self._cluster = cluster
        self._clock = clock
        self._give_up = give_up
        self._restart_limit = restart_limit
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._failed_checks: dict[str, int] = {}
        self._background = Background("reconciler")

    async def start(self) -> None:
        """Look once, so that servers found again are used at once; then go on in the background."""
        for row in await self._deployments.list_wishes():
            if row.phase is not Phase.STARTING:
                await self._welcome(row)
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def reconcile(self) -> None:
        """One look at everything."""
        self._deployments.take_suspects()
        rows = await self._deployments.list_wishes()
        await asyncio.gather(*(self._tend(row) for row in rows if row.phase is not Phase.STARTING))
        wished = {deployment_name(row.submission_id) for row in rows}
        for name in await self._cluster.list_deployments():
            if name not in wished:
                logger.info("stopping %s: nobody wishes for it", name)
                await self._deployments.stop_unwanted(name)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._deployments.woken.wait(), INTERVAL_S)
            self._deployments.woken.clear()
            try:
                await self.reconcile()
            except (DBAPIError, OSError, StoreUnreachable) as error:
                logger.warning("reconciling failed, trying again: %s", error)
                await asyncio.sleep(INTERVAL_S)

    async def _welcome(self, row: DeploymentRow) -> None:
        """After a start of the platform: use a server that still runs; a missing one was stopped by us, and counts as no crash."""
        seen = await self._deployments.look(row.submission_id)
        if seen.state is ServerState.HEALTHY:
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoint)
            return
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=0)
        with contextlib.suppress(StoreUnreachable):  # the background loop tries again
            await self._deployments.apply(_deployment(row))

    async def _tend(self, row: DeploymentRow) -> None:
        seen = await self._deployments.look(row.submission_id)
        if seen.state is ServerState.HEALTHY:
            await self._note_healthy(row, seen)
        elif seen.state in (ServerState.EXITED, ServerState.MISSING):
            await self._restart(row)
        elif self._hangs(row):
            logger.warning("%s hangs: stopping it", row.submission_id)
            await self._deployments.stop_server(row.submission_id)

    async def _note_healthy(self, row: DeploymentRow, seen: Sighting) -> None:
        self._failed_checks.pop(row.submission_id, None)
        is_stable = self._clock.now() - row.updated_at > timedelta(seconds=STABLE_S)
        if row.phase is not Phase.READY:
            logger.info("%s is ready again", row.submission_id)
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoint)
        elif row.restarts and is_stable:
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoint, restarts=0)
        else:
            self._deployments.note_endpoint(row.submission_id, seen.endpoint)

    async def _restart(self, row: DeploymentRow) -> None:
        restarts = row.restarts + 1
        if restarts > self._restart_limit:
            lines, _ = await self._deployments.logs(row.submission_id, 0)
            await self._give_up(row.submission_id, lines)
            return
        logger.warning("%s died: starting it again (%d)", row.submission_id, restarts)
        self._deployments.note_endpoint(row.submission_id, None)
        await self._deployments.apply(_deployment(row))  # a store out of reach counts as no restart
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=restarts)

    def _hangs(self, row: DeploymentRow) -> bool:
        """A ready server that fails its health checks, or a restarted one that does not get ready."""
        if row.phase is Phase.RESTARTING:
            return self._clock.now() - row.updated_at > self._ready_timeout
        self._deployments.note_endpoint(row.submission_id, None)
        failed = self._failed_checks.get(row.submission_id, 0) + 1
        self._failed_checks[row.submission_id] = 0 if failed >= HANGS_AFTER else failed
        return failed >= HANGS_AFTER


def _deployment(row: DeploymentRow) -> Deployment:
    return Deployment(
        row.submission_id,
        row.run,
        row.artifact_key,
        row.max_model_tokens,
        row.quantization,
        row.recipe,
        row.developer,
    )
