"""Brings one engine, and the deployments that use it, from what was found to what it should be.

- a ready server that crashed, or hangs, is started again; after ``restart_limit`` times within
  ``STABLE_S`` it is given up, and its submission fails with what the server last said. Half of several
  submissions that share it get another server first, and so on, until the one that kills it is alone;
- what the cluster caused is no crash, is counted against nobody, and comes back by itself: a server whose node was
  lost, or that somebody deleted, is started again; one for which there is no machine, or no image, is waited for;
- a server whose artifact is no longer in the store is started when it is there again; that is no crash either, and
  ``submissions/rollouts/unasked.py`` has it made again;
- a replica that exited, or hangs, beside others that serve is out of use at once and started again alone. That is no
  restart of the deployment, which is not given up for it; one that never gets ready is started ever more rarely;
- a deployment whose replicas, or whose regions, are not what they should be is applied again;
- the server of a deployment that sleeps is stopped, or leaves the GPU's memory where it is kept (``sleeping.py``).

Actions on one deployment are paced (``backoff.py``), each is logged with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from guanaco.errors import ClusterRefused, ClusterUnreachable, StoreUnreachable
from guanaco_server.clusters.cluster import Trouble
from guanaco_server.deployments.deployment import PUBLISHED, Deployment
from guanaco_server.deployments.engines.health import DeploymentHealth, ServerState
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, ServerBusy
from guanaco_server.deployments.reconciling.backoff import Backoff
from guanaco_server.deployments.reconciling.hangs import HangDetector
from guanaco_server.deployments.reconciling.sleeping import SleepingServers
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock

STABLE_S = 600  # a server that ran this long has its restarts forgiven
REPAIR_S = 5.0  # a replica that dies at its start is started after 0, 0, 0, then 10, 20, 40 … s
# More deployments than connections wait for the database at once, so it may have none left for a while.
OUT_OF_REACH = (
    *(DBAPIError, NoConnectionLeft, OSError),
    *(StoreUnreachable, ClusterUnreachable, ClusterRefused),
)
WITHOUT_SERVER = (Phase.WAITING, Phase.SLEEPING, Phase.WAKING)
LOST = "Its artifact is no longer in the store; the platform makes it again from the Hub."
LEFT_TO_NEWER = (
    "a newer version of Guanaco has written what this one does not know; it is left as it is"
)

GiveUp = Callable[[str, list[str]], Awaitable[None]]

logger = logging.getLogger(__name__)


class EngineReconciler:
    def __init__(
        self,
        deployments: DeploymentService,
        sleeping: SleepingServers,
        clock: Clock,
        give_up: GiveUp,
        hangs: HangDetector,
        pace: Backoff,
        *,
        restart_limit: int,
        regions: frozenset[str],
    ) -> None:
        """A deployment outside ``regions`` is moved; no regions, no moves."""
        self._deployments = deployments
        self._sleeping = sleeping
        self._clock = clock
        self._give_up = give_up
        self._hangs = hangs
        self._pace = pace
        self._repairs = Backoff(clock, REPAIR_S)  # apart, so that a bad replica delays nothing else
        self._restart_limit = restart_limit
        self._regions = regions
        self._to_adopt: set[str] = set()
        self._problems: dict[str, str] = {}

    def note_served(self, rows: Iterable[DeploymentRow]) -> None:
        """Note what was served before this process began to lead: its servers are used if they still run."""
        self._to_adopt = {
            row.submission_id for row in rows if row.phase in (Phase.READY, Phase.RESTARTING)
        }

    def forget_all_but(self, submission_ids: set[str], names: set[str]) -> None:
        """Forget the deployments and the servers that are gone."""
        self._repairs.forget_all_but(names)
        self._problems = {
            key: problem for key, problem in self._problems.items() if key in submission_ids
        }

    async def reconcile(
        self, users: list[DeploymentRow], running: list[str], surplus: frozenset[str]
    ) -> None:
        """Bring the deployments that use one engine to what they should be; the first leads.

        ``surplus`` are the names of the servers without users that are to stop.
        """
        published = [row for row in users if row.is_understood and row.phase in PUBLISHED]
        for row in users:
            if not row.is_understood:
                self._note_problem(row.submission_id, LEFT_TO_NEWER)
        try:
            if published:
                await self._reconcile_published(published)
            for row in users:
                if row.is_understood and row.phase in WITHOUT_SERVER:
                    await self._keep_stopped(row, running, surplus)
            await self._let_sleep(users, running, surplus)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be seen to, trying again: %s", users[0].submission_id, error)

    async def _reconcile_published(self, users: list[DeploymentRow]) -> None:
        lead, *others = users
        is_new_here = lead.submission_id in self._to_adopt
        seen = await (
            self._adopt(lead) if is_new_here else self._reconcile_deployment(lead, others)
        )
        for row in others:
            await self._follow(row, seen)
        if lead.base_key is not None and seen.state is ServerState.HEALTHY:
            await self._deployments.adapters.unload_unneeded(lead.server_key, seen.endpoints)

    async def _adopt(self, row: DeploymentRow) -> DeploymentHealth:
        """After a start of the platform, use a server that still runs. A missing one was stopped by us and does not count as a crash."""
        seen = await self._look(row)
        self._to_adopt.discard(row.submission_id)
        if seen.state is ServerState.HEALTHY:
            ready = await self._deployments.adapters.ready(row, seen.endpoints)
            await self._deployments.mark(row.submission_id, Phase.READY, ready, seen=row)
            return seen
        await self._leave_lost_region(row)
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=0, seen=row)
        if seen.trouble is Trouble.ARTIFACT_MISSING:
            self._note_problem(row.submission_id, seen.problem)
            await self._write_down(row, seen)
        else:
            await self._deployments.servers.apply(Deployment.of(row))
        return seen

    async def _follow(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Record for a deployment what was seen of the engine that it shares."""
        is_new_here = row.submission_id in self._to_adopt
        self._to_adopt.discard(row.submission_id)
        await self._write_down(row, seen)
        if seen.state is ServerState.HEALTHY:
            await self._note_healthy(row, seen)
            return
        await self._deployments.publish_replicas(row, ())
        if row.phase is Phase.READY:
            restarts = 0 if is_new_here else None
            await self._deployments.mark(
                row.submission_id, Phase.RESTARTING, restarts=restarts, seen=row
            )

    async def _keep_stopped(
        self, row: DeploymentRow, running: list[str], surplus: frozenset[str]
    ) -> None:
        self._deployments.note_replicas(row.submission_id, ())
        name = deployment_name(row.server_key)
        if (
            name in running
            and name in surplus
            and await self._deployments.servers.stop_if_unused(row)
        ):
            logger.info("stopped the server of %s: it is %s", row.submission_id, row.phase)

    async def _let_sleep(
        self, users: list[DeploymentRow], running: list[str], surplus: frozenset[str]
    ) -> None:
        """Let a server sleep that is kept although all of its deployments do. Stop one that hangs."""
        engine = users[0].server_key
        name = deployment_name(engine)
        if name not in running or any(row.phase is not Phase.SLEEPING for row in users):
            self._sleeping.forget(engine)
        elif name not in surplus:
            if self._hangs.idle_hangs(engine, await self._deployments.servers.look(engine)):
                logger.warning("stopping the server of %s, which nobody uses: it hangs", engine)
                await self._deployments.servers.stop_if_unused(users[0])
            else:
                await self._sleeping.settle(users)

    async def _reconcile_deployment(
        self, row: DeploymentRow, others: list[DeploymentRow]
    ) -> DeploymentHealth:
        """Bring the engine to what it should be, for the deployment that leads and the others that use it."""
        seen = await self._look(row)
        self._note_problem(row.submission_id, seen.problem)
        await self._write_down(row, seen)
        if seen.state is ServerState.HEALTHY:
            await self._note_healthy(row, seen)
            await self._stop_hanging(row, seen)
            await self._adjust(row, seen)
        elif seen.state in (ServerState.EXITED, ServerState.MISSING):
            if await self._restart(row, seen):
                await self._give_up_on([row, *others])
        elif await self._wait(row, seen):
            await self._give_up_on([row, *others])
        if seen.state is not ServerState.MISSING:
            await self._deployments.servers.renew_secrets(row)
        return seen

    async def _look(self, row: DeploymentRow) -> DeploymentHealth:
        """Look at the engine. One that holds another artifact than it should is given the right one first, or is stopped."""
        seen = await self._deployments.servers.look(row.server_key)
        if seen.state in (ServerState.EXITED, ServerState.MISSING):
            is_lost = await self._deployments.servers.lacks_artifact(row)
            lost = replace(seen, trouble=Trouble.ARTIFACT_MISSING, problem=LOST)
            return lost if is_lost else seen
        if seen.state is not ServerState.HEALTHY:
            return seen
        if not await self._deployments.servers.holds_another(row, seen.endpoints):
            return seen
        await self._deployments.publish_replicas(row, ())
        try:
            for endpoint in seen.endpoints:
                await self._deployments.servers.swap(row, endpoint)
        except ServerBusy as error:
            logger.info("%s waits for its server: %s", row.submission_id, error)
            return DeploymentHealth(ServerState.STARTING)
        except ModelServerFault as error:
            logger.warning("%s gets a server of its own: %s", row.submission_id, error)
            await self._deployments.servers.stop_server_of(row)
            return DeploymentHealth(ServerState.MISSING, trouble=Trouble.OBJECT_MISSING)
        logger.info("%s has taken over a server of its shape", row.submission_id)
        return seen

    async def _write_down(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Write down the trouble, for `guanaco status` and the metrics. While it starts after a crash, the last problem stays."""
        if seen.state is ServerState.STARTING and seen.trouble is None:
            return
        trouble: Trouble | None = seen.trouble
        problem: str | None = _sentence(seen)
        if seen.state is ServerState.HEALTHY:
            trouble = self._deployments.adapters.trouble(row)
            problem = self._deployments.adapters.problem(row)
        if (row.trouble, row.problem) != (trouble, problem):
            await self._deployments.note(row.submission_id, trouble=trouble, problem=problem)

    async def _note_healthy(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        is_stable = self._clock.now() - row.updated_at > timedelta(seconds=STABLE_S)
        ready = await self._deployments.adapters.ready(row, seen.endpoints)
        if not ready:
            await self._deployments.publish_replicas(row, ())
        elif row.phase is not Phase.READY:
            logger.info("%s is ready again", row.submission_id)
            await self._deployments.mark(row.submission_id, Phase.READY, ready, seen=row)
        elif row.restarts and is_stable:
            await self._deployments.mark(
                row.submission_id, Phase.READY, ready, restarts=0, seen=row
            )
        else:
            await self._deployments.publish_replicas(row, ready)
        if seen.region and seen.region != row.region:
            await self._deployments.note(row.submission_id, region=seen.region)
        await self._deployments.machines.note(row.held_key, seen.machines)

    async def _stop_hanging(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Stop the replicas that hang while others answer."""
        if seen.is_settled and not seen.silent:
            self._repairs.forget(deployment_name(row.server_key))
        for endpoint in self._hangs.hanging(row, seen):
            if await self._deployments.servers.stop_replica(row.server_key, endpoint):
                logger.warning(
                    "stopped the replica of %s at %s: it hung", row.submission_id, endpoint
                )

    async def _wait(self, row: DeploymentRow, seen: DeploymentHealth) -> bool:
        """Handle a deployment that runs but does not answer: it is starting, or it hangs. Return whether to give it up."""
        await self._deployments.publish_replicas(row, ())
        if seen.trouble is not None:
            self._hangs.restart_ready_timeout(row)
        has_only_starting = not seen.is_settled or not seen.silent
        if row.phase is Phase.READY and has_only_starting:  # the last one died while another starts
            await self._deployments.mark(row.submission_id, Phase.RESTARTING, seen=row)
        elif seen.trouble is None and self._hangs.hangs(row):
            return await self._restart_hanging(row)
        if seen.trouble is Trouble.OBJECT_MISSING:
            await self._apply_again(row, self._repairs, _why(seen))
        else:
            await self._adjust(row, seen)
        return False

    async def _restart_hanging(self, row: DeploymentRow) -> bool:
        """Return whether it has been restarted often enough."""
        if not self._pace.allows(deployment_name(row.server_key)):
            return False
        if row.restarts >= self._restart_limit:
            return True
        logger.warning("stopping the server of %s: it hangs", row.submission_id)
        if await self._deployments.servers.stop_server_of(row):
            await self._deployments.mark(
                row.submission_id, Phase.RESTARTING, restarts=row.restarts + 1, seen=row
            )
        return False

    async def _adjust(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Apply a deployment again that runs, but not as it should."""
        has_replicas = row.applied_replicas == row.wanted_replicas
        if has_replicas and seen.is_settled:
            return
        why = f"{row.wanted_replicas} replicas instead of {row.applied_replicas}"
        if has_replicas:
            why = seen.problem or "it is not where it should be"
        pace = self._repairs if has_replicas else self._pace
        if await self._apply_again(row, pace, why) and not has_replicas:
            await self._deployments.mark_applied(row.submission_id, row.wanted_replicas)

    async def _apply_again(self, row: DeploymentRow, pace: Backoff, why: str) -> bool:
        if not pace.allows(deployment_name(row.server_key)):
            return False
        logger.info("applying %s again: %s", row.submission_id, why)
        await self._deployments.servers.apply(Deployment.of(row))
        return True

    async def _restart(self, row: DeploymentRow, seen: DeploymentHealth) -> bool:
        """Start a server again that does not run. Only a crash counts; what the cluster still tries by itself is waited for. Return whether to give it up."""
        await self._deployments.publish_replicas(row, ())
        if seen.trouble is Trouble.ARTIFACT_MISSING:
            if row.phase is Phase.READY:
                await self._deployments.mark(row.submission_id, Phase.RESTARTING, seen=row)
            return False
        if seen.trouble is not None and seen.trouble.is_waited_for:
            self._hangs.restart_ready_timeout(row)
            if row.phase is Phase.READY:
                await self._deployments.mark(row.submission_id, Phase.RESTARTING, seen=row)
            await self._adjust(row, seen)
            return False
        is_moved = await self._leave_lost_region(row)
        is_crash = seen.trouble is Trouble.CRASHED and not is_moved
        restarts = row.restarts + is_crash
        if restarts > self._restart_limit:
            return True
        if not self._pace.allows(deployment_name(row.server_key)):
            return False
        counted = f" ({restarts})" if is_crash else ""
        logger.warning(
            "starting the server of %s again%s: %s", row.submission_id, counted, _why(seen)
        )
        await self._deployments.servers.apply(
            Deployment.of(row)
        )  # a store out of reach is no restart
        await self._deployments.mark(
            row.submission_id, Phase.RESTARTING, restarts=restarts, seen=row
        )
        return False

    async def _give_up_on(self, rows: list[DeploymentRow]) -> None:
        """Fail a submission whose server keeps dying. Half of several that share one get another server first, to find who kills it.

        This is repeated with the server that still dies, until it has one user. A server that dies before it answers fails all.
        """
        if len(rows) > 1 and rows[0].phase is Phase.READY:
            if left := await self._deployments.divide(rows):
                logger.warning(
                    "the server of %s keeps dying: %s get another one, to find out who kills it",
                    rows[0].submission_id,
                    ", ".join(left),
                )
            return
        lines, _ = await self._deployments.servers.logs(rows[0].server_key, 0)
        for row in rows:
            await self._give_up(row.submission_id, lines)

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
    if seen.problem is not None:
        return seen.problem
    if seen.state is ServerState.MISSING:
        return "it is gone"
    return f"it exited with status {seen.exit_code}"


def _sentence(seen: DeploymentHealth) -> str:
    if seen.problem is not None:
        return seen.problem
    if seen.state is ServerState.MISSING:
        return "Its model server is no longer in the cluster."
    return f"Its model server exited with status {seen.exit_code}."
