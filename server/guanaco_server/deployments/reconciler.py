"""Brings the cluster to what the database wants. It compares states and needs no memory of events.

Every second, or at once when woken, and only while it leads:
- who waits for room is given it, by ``scaling/admission.py``;
- a ready server that exited, or hangs, is started again; after ``restart_limit`` times within
  ``STABLE_S`` it is given up, and its submission fails with what the server last said;
- a replica that exited, or hangs, beside others that serve is out of use at once and started again alone. That is no
  restart of the deployment, which is not given up for it; one that never gets ready is started ever more rarely;
- a deployment whose replicas, or whose regions, are not what they should be is applied again;
- a server that runs with nobody wishing for it is stopped, and so is that of a deployment that sleeps.
A deployment that is still ``starting`` belongs to its pipeline stage and is left alone, and so is one that is
``draining``: its rollout stops it. Actions on one
deployment are paced (``backoff.py``), each is logged with its reason, and trouble with one delays no other.
Of several platforms of one cluster only the leader acts; the others learn from the database what is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from guanaco.errors import ClusterRefused, ClusterUnreachable, StoreUnreachable
from guanaco_server.clusters.cluster import Cluster
from guanaco_server.deployments.backoff import Backoff
from guanaco_server.deployments.health import DeploymentHealth, HangDetector, ServerState
from guanaco_server.deployments.service import Deployment, DeploymentService
from guanaco_server.deployments.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

INTERVAL_S = 1.0
STABLE_S = 600  # a server that ran this long has its restarts forgiven
REPAIR_S = 5.0  # a replica that dies at its start is started after 0, 0, 0, then 10, 20, 40 … s
OUT_OF_REACH = (StoreUnreachable, ClusterUnreachable, ClusterRefused)

GiveUp = Callable[[str, list[str]], Awaitable[None]]

LEFT_TO_NEWER = (
    "a newer version of Guanaco has written what this one does not know; it is left as it is"
)

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
        is_leader: Callable[[], bool],
        admit: Callable[[], Awaitable[None]],
        regions: frozenset[str],
    ) -> None:
        """``admit`` gives room to deployments that wait for it. A deployment outside ``regions`` is moved; no regions, no moves."""
        self._deployments = deployments
        self._cluster = cluster
        self._clock = clock
        self._give_up = give_up
        self._restart_limit = restart_limit
        self._admit = admit
        self._is_leader = is_leader
        self._regions = regions
        self._has_welcomed = False
        self._hangs = HangDetector(clock, ready_timeout_s)
        self._problems: dict[str, str] = {}
        self._pace = Backoff(clock)
        self._repairs = Backoff(
            clock, REPAIR_S
        )  # apart, so that one bad replica delays nothing else
        self._background = Background("reconciler")

    async def start(self) -> None:
        """Reconcile once, so that adopted servers are used at once; then go on in the background."""
        if self._is_leader():
            await self._welcome_all()
        else:
            await self._deployments.learn_endpoints()
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def reconcile(self) -> None:
        """Reconcile everything once. A process that does not lead only reads the endpoints from the database."""
        if not self._is_leader():
            self._has_welcomed = False
            await self._deployments.learn_endpoints()
            return
        self._deployments.take_suspects()
        await self._admit()
        rows = await self._deployments.list_wishes()
        running = await self._cluster.list_deployments()
        await asyncio.gather(*(self._tend_safely(row, running) for row in rows))
        wished = {deployment_name(row.server_key) for row in rows}
        for name in running:
            if name not in wished and self._pace.allows(name):
                logger.info("stopping %s: nobody wishes for it", name)
                await self._deployments.stop_unwanted(name)
        for pace in (self._pace, self._repairs):
            pace.forget_all_but(wished.union(running))
        self._hangs.forget_all_but({row.submission_id for row in rows})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._deployments.woken.wait(), INTERVAL_S)
            self._deployments.woken.clear()
            try:
                await self._look_again()
            except (DBAPIError, OSError, *OUT_OF_REACH) as error:
                logger.warning("reconciling failed, trying again: %s", error)
                await asyncio.sleep(INTERVAL_S)

    async def _look_again(self) -> None:
        if self._is_leader() and not self._has_welcomed:
            await self._welcome_all()
        await self.reconcile()

    async def _welcome_all(self) -> None:
        for row in await self._deployments.list_wishes():
            if row.is_understood and row.phase in (Phase.READY, Phase.RESTARTING):
                await self._welcome(row)
        self._has_welcomed = True

    async def _welcome(self, row: DeploymentRow) -> None:
        """After a start of the platform, use a server that still runs. A missing one was stopped by us and does not count as a crash."""
        seen = await self._deployments.look(row.server_key)
        if seen.state is ServerState.HEALTHY:
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoints)
            return
        await self._leave_lost_region(row)
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=0)
        with contextlib.suppress(*OUT_OF_REACH):  # the background loop tries again
            await self._deployments.apply(Deployment.of(row))

    async def _tend_safely(self, row: DeploymentRow, running: list[str]) -> None:
        try:
            if not row.is_understood:
                self._note_problem(row.submission_id, LEFT_TO_NEWER)
            elif row.phase in (Phase.READY, Phase.RESTARTING):
                await self._tend(row)
            elif row.phase not in (Phase.STARTING, Phase.DRAINING):
                await self._keep_stopped(row, running)
        except (OSError, *OUT_OF_REACH) as error:
            logger.warning("%s cannot be seen to, trying again: %s", row.submission_id, error)

    async def _keep_stopped(self, row: DeploymentRow, running: list[str]) -> None:
        self._deployments.note_replicas(row.submission_id, ())
        if deployment_name(row.server_key) in running:
            logger.info("stopping the server of %s: it is %s", row.submission_id, row.phase)
            await self._deployments.stop_server(row.server_key)

    async def _tend(self, row: DeploymentRow) -> None:
        seen = await self._deployments.look(row.server_key)
        self._note_problem(row.submission_id, seen.problem)
        if seen.state is ServerState.HEALTHY:
            await self._note_healthy(row, seen)
            await self._stop_hanging(row, seen)
            await self._adjust(row, seen)
        elif seen.state in (ServerState.EXITED, ServerState.MISSING):
            await self._restart(row, seen)
        else:
            await self._wait(row, seen)

    async def _note_healthy(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        is_stable = self._clock.now() - row.updated_at > timedelta(seconds=STABLE_S)
        if row.phase is not Phase.READY:
            logger.info("%s is ready again", row.submission_id)
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoints)
        elif row.restarts and is_stable:
            await self._deployments.mark(row.submission_id, Phase.READY, seen.endpoints, restarts=0)
        else:
            await self._deployments.publish_replicas(row, seen.endpoints)
        if seen.region and seen.region != row.region:
            await self._deployments.note(row.submission_id, region=seen.region)

    async def _stop_hanging(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Stop the replicas that hang while others answer."""
        if seen.is_settled and not seen.silent:
            self._repairs.forget(deployment_name(row.server_key))
        for endpoint in self._hangs.hanging(row, seen):
            if await self._deployments.stop_replica(row.server_key, endpoint):
                logger.warning(
                    "stopped the replica of %s at %s: it hung", row.submission_id, endpoint
                )

    async def _wait(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Handle a deployment that runs but does not answer: it is starting, or it hangs."""
        await self._deployments.publish_replicas(row, ())
        has_only_starting = not seen.is_settled or not seen.silent
        if row.phase is Phase.READY and has_only_starting:  # the last one died while another starts
            await self._deployments.mark(row.submission_id, Phase.RESTARTING)
        elif self._hangs.hangs(row) and self._pace.allows(deployment_name(row.server_key)):
            logger.warning("stopping the server of %s: it hangs", row.submission_id)
            await self._deployments.stop_server(row.server_key)
            return
        await self._adjust(row, seen)

    async def _adjust(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Apply a deployment again that runs, but not as it should."""
        has_replicas = row.applied_replicas == row.wanted_replicas
        if has_replicas and seen.is_settled:
            return
        pace = self._repairs if has_replicas else self._pace
        if not pace.allows(deployment_name(row.server_key)):
            return
        logger.info(
            "applying %s again: %s",
            row.submission_id,
            seen.problem or "it is not where it should be"
            if has_replicas
            else f"{row.wanted_replicas} replicas instead of {row.applied_replicas}",
        )
        await self._deployments.apply(Deployment.of(row))
        if not has_replicas:
            await self._deployments.mark_applied(row.submission_id, row.wanted_replicas)

    async def _restart(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        await self._deployments.publish_replicas(row, ())
        is_moved = await self._leave_lost_region(row)
        restarts = row.restarts if is_moved else row.restarts + 1
        if restarts > self._restart_limit:
            lines, _ = await self._deployments.logs(row.server_key, 0)
            await self._give_up(row.submission_id, lines)
            return
        if not self._pace.allows(deployment_name(row.server_key)):
            return
        logger.warning(
            "starting the server of %s again (%d): %s",
            row.submission_id,
            restarts,
            seen.problem or _why(seen),
        )
        await self._deployments.apply(Deployment.of(row))  # a store out of reach is no restart
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=restarts)

    async def _leave_lost_region(self, row: DeploymentRow) -> bool:
        """Forget a region that the settings no longer have. Return whether there was one."""
        if row.region is None or not self._regions or row.region in self._regions:
            return False
        logger.warning(
            "moving %s: its region %s is no longer in the settings", row.submission_id, row.region
        )
        await self._deployments.note(row.submission_id, region=None)
        return True

    def _note_problem(self, submission_id: str, problem: str | None) -> None:
        """Log a problem once, and again when it changes."""
        if problem is not None and self._problems.get(submission_id) != problem:
            logger.warning("%s has a problem: %s", submission_id, problem)
        if problem is None:
            self._problems.pop(submission_id, None)
        else:
            self._problems[submission_id] = problem


def _why(seen: DeploymentHealth) -> str:
    if seen.state is ServerState.MISSING:
        return "it is gone"
    return f"it exited with status {seen.exit_code}"
