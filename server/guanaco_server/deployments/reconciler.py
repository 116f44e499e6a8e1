"""Brings the cluster to what the database wants. It compares states and needs no memory of events.

Every second, or at once when woken, and only while it leads (with nothing wished and nothing running it waits for a commit):
- who waits for room is given it, by ``scaling/admission.py``;
- a ready server that crashed, or hangs, is started again; after ``restart_limit`` times within
  ``STABLE_S`` it is given up, and its submission fails with what the server last said;
- what the cluster caused is no crash, is counted against nobody, and comes back by itself: a server whose node was
  lost, or that somebody deleted, is started again; one for which there is no machine, or no image, is waited for;
- a replica that exited, or hangs, beside others that serve is out of use at once and started again alone. That is no
  restart of the deployment, which is not given up for it; one that never gets ready is started ever more rarely;
- a deployment whose replicas, or whose regions, are not what they should be is applied again;
- a server that runs with nobody wishing for it is stopped, and so is that of a deployment that sleeps;
- a server on a GPU that is kept while its deployments sleep leaves the GPU's memory (``sleeping.py``);
- a server that nobody uses and that hangs is stopped, before somebody takes it over;
- a server may be started ahead of demand, by ``scaling/spares.py``.
A deployment that is still ``starting`` belongs to its pipeline stage and is left alone, and so is one that is
``draining``: its rollout stops it. Deployments that share an engine are handled together: one of them leads, and acts for all. Each engine is handled in a task of its own, which the loop never waits for: while one is being worked on, the others go on. Actions on one
deployment are paced (``backoff.py``), each is logged with its reason.
Only the leader of several platforms of one cluster acts; the others learn from the database what is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from guanaco.errors import ClusterRefused, ClusterUnreachable, StoreUnreachable
from guanaco_server.clusters.cluster import Cluster, Trouble
from guanaco_server.database.commits import CommitWatch
from guanaco_server.deployments.backoff import Backoff
from guanaco_server.deployments.deployment import PUBLISHED, Deployment
from guanaco_server.deployments.health import DeploymentHealth, HangDetector, ServerState
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, ServerBusy
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.sleeping import SleepingServers
from guanaco_server.deployments.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

INTERVAL_S = 1.0
REST_S = 15.0  # while there is nothing to keep running, for what others start in the cluster
STABLE_S = 600  # a server that ran this long has its restarts forgiven
REPAIR_S = 5.0  # a replica that dies at its start is started after 0, 0, 0, then 10, 20, 40 … s
START_S = 30.0  # the first look at everything; what takes longer goes on in the background
# More deployments than connections wait for the database at once, so it may have none left for a while.
OUT_OF_REACH = (
    *(DBAPIError, NoConnectionLeft, OSError),
    *(StoreUnreachable, ClusterUnreachable, ClusterRefused),
)

AHEAD = "a server ahead of demand"  # the name of a task; deployments' keys have no spaces
WITHOUT_SERVER = (Phase.WAITING, Phase.SLEEPING, Phase.WAKING)

GiveUp = Callable[[str, list[str]], Awaitable[None]]

LEFT_TO_NEWER = (
    "a newer version of Guanaco has written what this one does not know; it is left as it is"
)

logger = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        deployments: DeploymentService,
        sleeping: SleepingServers,
        cluster: Cluster,
        clock: Clock,
        give_up: GiveUp,
        *,
        restart_limit: int,
        ready_timeout_s: float,
        is_leader: Callable[[], bool],
        admit: Callable[[], Awaitable[frozenset[str]]],
        start_ahead: Callable[[], Awaitable[None]],
        regions: frozenset[str],
        commits: CommitWatch,
    ) -> None:
        """``admit`` gives room to deployments that wait for it, and returns the servers without users that are to stop.
        ``start_ahead`` starts a server ahead of demand, if one is due.

        A deployment outside ``regions`` is moved; no regions, no moves.
        """
        self._deployments = deployments
        self._sleeping = sleeping
        self._cluster = cluster
        self._clock = clock
        self._give_up = give_up
        self._restart_limit = restart_limit
        self._admit = admit
        self._start_ahead = start_ahead
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._is_leader = is_leader
        self._regions = regions
        self._commits = commits
        self._surplus: frozenset[str] = frozenset()
        self._is_in_charge = False
        self._has_work = True
        self._to_welcome: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hangs = HangDetector(clock, ready_timeout_s)
        self._problems: dict[str, str] = {}
        self._pace = Backoff(clock)
        self._repairs = Backoff(
            clock, REPAIR_S
        )  # apart, so that one bad replica delays nothing else
        self._background = Background("reconciler")

    async def start(self) -> None:
        """Reconcile once, so that adopted servers are used at once; then go on in the background."""
        await self._look_again()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=START_S)
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()
        await self._drop_tasks()

    async def reconcile(self) -> None:
        """Reconcile everything once, to the end. A process that does not lead only reads the endpoints from the database."""
        await self._begin()
        await asyncio.gather(*self._tasks.values())
        self._reap()

    async def _run(self) -> None:
        while True:
            await self._commits.wait(INTERVAL_S, INTERVAL_S if self._has_work else REST_S)
            try:
                await self._look_again()
            except OUT_OF_REACH as error:
                logger.warning("reconciling failed, trying again: %s", error)
                self._has_work = True
                await asyncio.sleep(INTERVAL_S)

    async def _look_again(self) -> None:
        if self._is_leader() and not self._is_in_charge:
            rows = await self._deployments.list_wishes()
            self._to_welcome = {
                row.submission_id for row in rows if row.phase in (Phase.READY, Phase.RESTARTING)
            }
            self._is_in_charge = True
        await self._begin()

    async def _begin(self) -> None:
        """Begin a task for each deployment that has none."""
        self._reap()
        if not self._is_leader():
            self._is_in_charge = False
            self._has_work = True  # it may lead at any time
            await self._drop_tasks()
            await self._deployments.learn_endpoints()
            return
        self._deployments.take_suspects()
        # Later changes are seen by the next look: no other server is stopped for want of room.
        self._surplus = await self._admit()
        rows = await self._deployments.list_wishes()
        spares = {deployment_name(row.id): row for row in await self._deployments.list_spares()}
        running = await self._cluster.list_deployments()
        self._has_work = bool(rows or spares or running or self._tasks)
        for users in _by_engine(rows):
            self._spawn(users[0].server_key, self._reconcile_engine_safely(users, running))
        wished = {deployment_name(row.server_key) for row in rows}
        wished.update(spares)
        for name, engine in spares.items():
            self._reconcile_spare(name, engine, is_running=name in running)
        self._spawn(AHEAD, self._start_ahead_safely())
        for name in running:
            if name not in wished and name not in self._tasks and self._pace.allows(name):
                logger.info("stopping %s: nobody wishes for it", name)
                self._spawn(name, self._stop_unwanted(name))
        for pace in (self._pace, self._repairs):
            pace.forget_all_but(wished.union(running))
        ids = {row.submission_id for row in rows}
        self._hangs.forget_all_but(ids)
        engines = {row.server_key for row in rows}
        self._sleeping.forget_all_but(engines)
        self._hangs.forget_idle_but(engines.union(engine.id for engine in spares.values()))
        self._problems = {name: problem for name, problem in self._problems.items() if name in ids}

    def _reconcile_spare(self, name: str, engine: EngineRow, *, is_running: bool) -> None:
        """End a server without users that is to stop, or ended itself; look after the others."""
        is_starting = engine.spare is not None and engine.spare.is_starting
        if name in self._tasks or (is_starting and not is_running and AHEAD in self._tasks):
            return
        if name in self._surplus or not is_running:
            logger.info("stopping %s: nobody uses it", name)
            self._spawn(name, self._end_spare(engine.id))
        elif is_starting:
            self._spawn(name, self._check_spare_start(engine))
        else:
            self._spawn(name, self._check_spare(engine.id))

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        if name in self._tasks:
            work.close()
        else:
            self._tasks[name] = asyncio.create_task(work, name=f"reconcile {name}")

    def _reap(self) -> None:
        """Forget the tasks that are done. An error that none of them expects ends the platform, as in any loop."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                task.result()

    async def _drop_tasks(self) -> None:
        """End the tasks: a process that does not lead any more must not act."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _adopt(self, row: DeploymentRow) -> DeploymentHealth:
        """After a start of the platform, use a server that still runs. A missing one was stopped by us and does not count as a crash."""
        seen = await self._look(row)
        self._to_welcome.discard(row.submission_id)
        if seen.state is ServerState.HEALTHY:
            ready = await self._deployments.adapters.ready(row, seen.endpoints)
            await self._deployments.mark(row.submission_id, Phase.READY, ready, seen=row)
            return seen
        await self._leave_lost_region(row)
        await self._deployments.mark(row.submission_id, Phase.RESTARTING, restarts=0, seen=row)
        await self._deployments.apply(Deployment.of(row))
        return seen

    async def _stop_unwanted(self, name: str) -> None:
        try:
            await self._deployments.stop_unwanted(name)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be stopped, trying again: %s", name, error)

    async def _end_spare(self, engine: str) -> None:
        try:
            await self._deployments.end_spare(engine)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be stopped, trying again: %s", engine, error)

    async def _check_spare_start(self, engine: EngineRow) -> None:
        """Note that a server that was started ahead answers. One that ended, or takes too long, is stopped."""
        assert engine.spare is not None, "it has no users"
        try:
            seen = await self._deployments.look(engine.id)
            has_ended = seen.state in (ServerState.EXITED, ServerState.MISSING)
            is_late = self._clock.now() - engine.spare.since > self._ready_timeout
            if seen.state is ServerState.HEALTHY:
                logger.info("%s waits for a submission of its shape", engine.id)
                await self._deployments.note_spare_ready(engine.id)
            elif has_ended or is_late:
                logger.warning("%s was started ahead, and did not get ready", engine.id)
                await self._deployments.end_spare(engine.id)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be seen to, trying again: %s", engine.id, error)

    async def _check_spare(self, engine: str) -> None:
        """End a server that waits, and hangs. If its shape is wanted, another one is started ahead."""
        try:
            if self._hangs.idle_hangs(engine, await self._deployments.look(engine)):
                logger.warning("stopping %s, which nobody uses: it hangs", engine)
                await self._deployments.end_spare(engine)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be looked at, trying again: %s", engine, error)

    async def _start_ahead_safely(self) -> None:
        try:
            await self._start_ahead()
        except OUT_OF_REACH as error:
            logger.warning("no model server was started ahead: %s", error)

    async def _reconcile_engine_safely(
        self, users: list[DeploymentRow], running: list[str]
    ) -> None:
        """See to the deployments that use one engine; the first leads."""
        published = [row for row in users if row.is_understood and row.phase in PUBLISHED]
        for row in users:
            if not row.is_understood:
                self._note_problem(row.submission_id, LEFT_TO_NEWER)
        try:
            if published:
                await self._reconcile_engine(published)
            for row in users:
                if row.is_understood and row.phase in WITHOUT_SERVER:
                    await self._keep_stopped(row, running)
            await self._let_sleep(users, running)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be seen to, trying again: %s", users[0].submission_id, error)

    async def _reconcile_engine(self, users: list[DeploymentRow]) -> None:
        lead, *others = users
        is_new_here = lead.submission_id in self._to_welcome
        seen = await (
            self._adopt(lead) if is_new_here else self._reconcile_deployment(lead, others)
        )
        for row in others:
            await self._follow(row, seen)
        if lead.base_key is not None and seen.state is ServerState.HEALTHY:
            await self._deployments.adapters.unload_unneeded(lead.server_key, seen.endpoints)

    async def _follow(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Record for a deployment what was seen of the engine that it shares."""
        is_new_here = row.submission_id in self._to_welcome
        self._to_welcome.discard(row.submission_id)
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

    async def _keep_stopped(self, row: DeploymentRow, running: list[str]) -> None:
        self._deployments.note_replicas(row.submission_id, ())
        name = deployment_name(row.server_key)
        if (
            name in running
            and name in self._surplus
            and await self._deployments.stop_if_unused(row)
        ):
            logger.info("stopped the server of %s: it is %s", row.submission_id, row.phase)

    async def _let_sleep(self, users: list[DeploymentRow], running: list[str]) -> None:
        """Let a server sleep that is kept although all of its deployments do. Stop one that hangs."""
        engine = users[0].server_key
        name = deployment_name(engine)
        if name not in running or any(row.phase is not Phase.SLEEPING for row in users):
            self._sleeping.forget(engine)
        elif name not in self._surplus:
            if self._hangs.idle_hangs(engine, await self._deployments.look(engine)):
                logger.warning("stopping the server of %s, which nobody uses: it hangs", engine)
                await self._deployments.stop_if_unused(users[0])
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
            await self._deployments.renew_secrets(row)
        return seen

    async def _look(self, row: DeploymentRow) -> DeploymentHealth:
        """Look at the engine. One that holds another artifact than it should is given the right one first, or is stopped."""
        seen = await self._deployments.look(row.server_key)
        if seen.state is not ServerState.HEALTHY:
            return seen
        if not await self._deployments.holds_another(row, seen.endpoints):
            return seen
        await self._deployments.publish_replicas(row, ())
        try:
            for endpoint in seen.endpoints:
                await self._deployments.swap(row, endpoint)
        except ServerBusy as error:
            logger.info("%s waits for its server: %s", row.submission_id, error)
            return DeploymentHealth(ServerState.STARTING)
        except ModelServerFault as error:
            logger.warning("%s gets a server of its own: %s", row.submission_id, error)
            await self._deployments.stop_server_of(row)
            return DeploymentHealth(ServerState.MISSING, trouble=Trouble.OBJECT_MISSING)
        logger.info("%s has taken over a server of its shape", row.submission_id)
        return seen

    async def _write_down(self, row: DeploymentRow, seen: DeploymentHealth) -> None:
        """Write down the trouble, for `guanaco status` and the metrics. While it starts after a crash, the last problem stays."""
        if seen.state is ServerState.STARTING and seen.trouble is None:
            return
        problem: str | None = _sentence(seen)
        if seen.state is ServerState.HEALTHY:
            problem = self._deployments.adapters.problem(row)
        if (row.trouble, row.problem) != (seen.trouble, problem):
            await self._deployments.note(row.submission_id, trouble=seen.trouble, problem=problem)

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
            if await self._deployments.stop_replica(row.server_key, endpoint):
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
        if await self._deployments.stop_server_of(row):
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
        await self._deployments.apply(Deployment.of(row))
        return True

    async def _restart(self, row: DeploymentRow, seen: DeploymentHealth) -> bool:
        """Start a server again that does not run. Only a crash counts; what the cluster still tries by itself is waited for. Return whether to give it up."""
        await self._deployments.publish_replicas(row, ())
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
        await self._deployments.apply(Deployment.of(row))  # a store out of reach is no restart
        await self._deployments.mark(
            row.submission_id, Phase.RESTARTING, restarts=restarts, seen=row
        )
        return False

    async def _give_up_on(self, rows: list[DeploymentRow]) -> None:
        lines, _ = await self._deployments.logs(rows[0].server_key, 0)
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


def _by_engine(rows: Iterable[DeploymentRow]) -> list[list[DeploymentRow]]:
    """Group the deployments by engine; within one, those first that want the most replicas, have them not yet, and were restarted most."""
    found: defaultdict[str, list[DeploymentRow]] = defaultdict(list)
    for row in rows:
        found[row.server_key].append(row)

    def rank(row: DeploymentRow) -> tuple[int, int, str]:
        return -row.wanted_replicas, -row.restarts, row.submission_id

    return [sorted(users, key=rank) for users in found.values()]


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
