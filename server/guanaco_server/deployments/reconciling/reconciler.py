"""Brings the cluster to what the database wants. It compares states and needs no memory of events.

Every second, or at once when woken, and only while it leads (with nothing wished and nothing running it waits for a commit):
- who waits for room is given it, by ``scaling/admission.py``;
- each engine, with the deployments that use it, is brought to what it should be (``engine_reconciler.py``);
- a server that runs with nobody wishing for it is stopped;
- a server that nobody uses and that hangs is stopped, before somebody takes it over;
- a server may be started ahead of demand, by ``scaling/spares.py``.
A deployment that is still ``starting`` belongs to its pipeline stage and is left alone, and so is one that is
``draining``: its rollout stops it. Deployments that share an engine are handled together: one of them leads, and acts for all.
Each engine is handled in a task of its own, which the loop never waits for: while one is being worked on, the others go on.
Only the leader of several platforms of one cluster acts; the others learn from the database what is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta

from guanaco_server.clusters.cluster import Cluster
from guanaco_server.database.commits import CommitWatch
from guanaco_server.deployments.engines.health import ServerState
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.reconciling.backoff import Backoff
from guanaco_server.deployments.reconciling.engine_reconciler import (
    OUT_OF_REACH,
    EngineReconciler,
    GiveUp,
)
from guanaco_server.deployments.reconciling.hangs import HangDetector
from guanaco_server.deployments.reconciling.sleeping import SleepingServers
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, EngineRow
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

INTERVAL_S = 1.0
REST_S = 15.0  # while there is nothing to keep running, for what others start in the cluster
START_S = 30.0  # the first look at everything; what takes longer goes on in the background

AHEAD = "a server ahead of demand"  # the name of a task; deployments' keys have no spaces

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
        self._admit = admit
        self._start_ahead = start_ahead
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._is_leader = is_leader
        self._commits = commits
        self._surplus: frozenset[str] = frozenset()
        self._is_in_charge = False
        self._has_work = True
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hangs = HangDetector(clock, ready_timeout_s)
        self._pace = Backoff(clock)
        self._engines = EngineReconciler(
            deployments,
            sleeping,
            clock,
            give_up,
            self._hangs,
            self._pace,
            restart_limit=restart_limit,
            regions=regions,
        )
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
            self._engines.note_served(await self._deployments.list_wishes())
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
        spares = {deployment_name(row.id): row for row in await self._deployments.spares.list()}
        running = await self._cluster.list_deployments()
        self._has_work = bool(rows or spares or running or self._tasks)
        for users in _by_engine(rows):
            reconciled = self._engines.reconcile(users, running, self._surplus)
            self._spawn(users[0].server_key, reconciled)
        wished = {deployment_name(row.server_key) for row in rows}
        wished.update(spares)
        for name, engine in spares.items():
            self._reconcile_spare(name, engine, is_running=name in running)
        self._spawn(AHEAD, self._start_ahead_safely())
        for name in running:
            if name not in wished and name not in self._tasks and self._pace.allows(name):
                logger.info("stopping %s: nobody wishes for it", name)
                self._spawn(name, self._stop_unwanted(name))
        ids, names = {row.submission_id for row in rows}, wished.union(running)
        self._pace.forget_all_but(names)
        self._engines.forget_all_but(ids, names)
        self._hangs.forget_all_but(ids)
        engines = {row.server_key for row in rows}
        self._sleeping.forget_all_but(engines)
        self._hangs.forget_idle_but(engines.union(engine.id for engine in spares.values()))

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

    async def _stop_unwanted(self, name: str) -> None:
        try:
            await self._deployments.servers.stop_unwanted(name)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be stopped, trying again: %s", name, error)

    async def _end_spare(self, engine: str) -> None:
        try:
            await self._deployments.spares.end(engine)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be stopped, trying again: %s", engine, error)

    async def _check_spare_start(self, engine: EngineRow) -> None:
        """Note that a server that was started ahead answers. One that ended, or takes too long, is stopped."""
        assert engine.spare is not None, "it has no users"
        try:
            seen = await self._deployments.servers.look(engine.id)
            has_ended = seen.state in (ServerState.EXITED, ServerState.MISSING)
            is_late = self._clock.now() - engine.spare.since > self._ready_timeout
            if seen.state is ServerState.HEALTHY:
                logger.info("%s waits for a submission of its shape", engine.id)
                await self._deployments.spares.note_ready(engine.id)
            elif has_ended or is_late:
                logger.warning("%s was started ahead, and did not get ready", engine.id)
                await self._deployments.spares.end(engine.id)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be seen to, trying again: %s", engine.id, error)

    async def _check_spare(self, engine: str) -> None:
        """End a server that waits, and hangs. If its shape is wanted, another one is started ahead."""
        try:
            if self._hangs.idle_hangs(engine, await self._deployments.servers.look(engine)):
                logger.warning("stopping %s, which nobody uses: it hangs", engine)
                await self._deployments.spares.end(engine)
        except OUT_OF_REACH as error:
            logger.warning("%s cannot be looked at, trying again: %s", engine, error)

    async def _start_ahead_safely(self) -> None:
        try:
            await self._start_ahead()
        except OUT_OF_REACH as error:
            logger.warning("no model server was started ahead: %s", error)


def _by_engine(rows: Iterable[DeploymentRow]) -> list[list[DeploymentRow]]:
    """Group the deployments by engine; within one, those first that want the most replicas, have them not yet, and were restarted most."""
    found: defaultdict[str, list[DeploymentRow]] = defaultdict(list)
    for row in rows:
        found[row.server_key].append(row)

    def rank(row: DeploymentRow) -> tuple[int, int, str]:
        return -row.wanted_replicas, -row.restarts, row.submission_id

    return [sorted(users, key=rank) for users in found.values()]
