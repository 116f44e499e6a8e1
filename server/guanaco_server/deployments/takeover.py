"""A new deployment takes over a hot server of its shape in place of a start; engines/swaps.py says which and how."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import ServerState
from guanaco_server.deployments.engines.swaps import IdleServers
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, ServerBusy
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow

BUSY_PATIENCE_S = 30.0  # for replies that are open on a server whose submissions all sleep
POLL_S = 0.1

logger = logging.getLogger(__name__)


class Takeover:
    def __init__(self, deployments: DeploymentService, idle: IdleServers) -> None:
        self._deployments = deployments
        self._idle = idle

    async def claim(self, deployment: Deployment) -> Deployment:
        """Exchange its engine for one that runs and that nobody needs, if there is one of its shape. Return the deployment as it is then."""
        rows = await self._deployments.list_wishes()
        row = _find(rows, deployment)
        if row is None:
            return deployment
        donor = await self._idle.find_for(row, rows, await self._deployments.spares.list())
        if donor is not None:
            if await self._deployments.take_server(row.submission_id, donor.engine):
                logger.info("%s takes over the server of %s", row.submission_id, donor.engine)
            row = _find(await self._deployments.list_wishes(), deployment)
        return replace(deployment, server=row.server) if row is not None else deployment

    async def swap(self, deployment: Deployment) -> str | None:
        """Have the deployment's server take its artifact and return the endpoint; None where a server must be started.

        A server that runs and cannot be swapped is stopped first. One that was not taken over may have other arguments, and is replaced, unless it sleeps on its GPU.
        """
        row = await self._deployments.find(deployment.submission_id)
        seen = await self._deployments.servers.look(deployment.server_key)
        if row is None or row.run != deployment.run or seen.state is not ServerState.HEALTHY:
            return None
        is_asleep = await self._deployments.servers.is_asleep(seen.endpoints)
        if not is_asleep and not await self._deployments.has_taken_over(row):
            return None
        if not await self._deployments.servers.holds_another(row, seen.endpoints):
            return None
        try:
            for endpoint in seen.endpoints:
                await self._swap(row, endpoint)
        except ModelServerFault as error:
            logger.warning("%s gets a server of its own: %s", row.submission_id, error)
            await self._deployments.servers.stop_server_of(row)
            return None
        return seen.endpoints[0]

    async def _swap(self, row: DeploymentRow, endpoint: str) -> None:
        deadline = time.monotonic() + BUSY_PATIENCE_S
        while True:
            try:
                return await self._deployments.servers.swap(row, endpoint)
            except ServerBusy:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)


def _find(rows: list[DeploymentRow], deployment: Deployment) -> DeploymentRow | None:
    """Return the deployment's row, unless another run has taken its place."""
    key, run = deployment.submission_id, deployment.run
    return next((row for row in rows if (row.submission_id, row.run) == (key, run)), None)
