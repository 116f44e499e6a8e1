"""The reconciler over two replicas that are killed again and again: real processes, both databases."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.local.servers import ReplicaRecord
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock, SystemClock
from tests.fixtures.local_cluster import IMPORTS, SCRIPTED, is_live, leader, running_cluster, until
from tests.fixtures.reconciling import compute_of, deployments_of, reconciler_of
from tests.fixtures.world import World, eventually

pytestmark = pytest.mark.slow

ID = "acme-tiny_v1"
NAME = deployment_name(ID)
SERVE = f'PYTHONPATH={IMPORTS["PYTHONPATH"]} exec {sys.executable} {SCRIPTED} "$@"'
COUNTED = f'echo >> "../starts-${{PWD##*/}}"; {SERVE}'
SECOND_DIES = f'echo >> "../starts-${{PWD##*/}}"; case "$PWD" in */1) exit 3;; esac; {SERVE}'


class Deaf(VllmServer):
    """Does not hear some of the servers."""

    def __init__(self) -> None:
        super().__init__()
        self.unheard: set[str] = set()

    async def is_healthy(self, endpoint: str) -> bool:
        return endpoint not in self.unheard and await super().is_healthy(endpoint)


class Replicated(World):
    """A submission with two replicas, which are processes of this machine; one restart is allowed."""

    def __init__(
        self,
        database: Database,
        cluster: LocalCluster,
        folder: Path,
        clock: Clock | None = None,
        script: str = COUNTED,
    ) -> None:
        self.server = Deaf()
        super().__init__(
            database,
            model_server=self.server,
            engine_command=["sh", "-c", script, "engine"],
            engine_args=["--token-delay-ms", "5"],
        )
        self.folder = folder
        self.given_up: list[str] = []
        self.deployments = deployments_of(self, cluster, clock)
        self.elsewhere = deployments_of(self, cluster, clock)
        self.elsewhere.note_reconciler(False)
        compute = compute_of(self, cluster=cluster)
        self.reconciler = reconciler_of(self, self._give_up, compute, clock)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        self.given_up.append(submission_id)

    async def deploy(self) -> None:
        """With one replica, as the pipeline does; the second is requested afterwards, as by the autoscaler."""
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        self.deployments.note_replicas(ID, ())
        deployment = Deployment(ID, 1, "a" * 64, 1_096)
        await self.deployments.wish(deployment)
        await self.deployments.servers.apply(deployment)
        await eventually(self.answers, within_s=30)
        seen = await self.deployments.servers.look(ID)
        await self.deployments.mark_ready(ID, seen.endpoints[0])
        await self.deployments.note(ID, wanted_replicas=2)

    async def answers(self) -> bool:
        return bool((await self.deployments.servers.look(ID)).endpoints)

    async def has(self, count: int) -> bool:
        """So many replicas, for every gateway of every process."""
        await self.elsewhere.refresh_endpoints()
        found = self.deployments.replicas(ID)
        return len(found) == count and self.elsewhere.replicas(ID) == found

    async def reconciled(self, count: int) -> None:
        """Look again and again, until there is this number of replicas."""

        async def holds() -> bool:
            await self.reconciler.reconcile()
            return await self.has(count)

        await eventually(holds, within_s=30)

    async def kill(self, replica: int) -> int:
        """kill -9; its process id."""
        pid = self.pid(replica)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_live(pid))
        return pid

    def pid(self, replica: int) -> int:
        return leader(self.folder, NAME, replica)

    def endpoint(self, replica: int) -> str:
        record = ReplicaRecord.read(self.folder / "cluster" / NAME / str(replica))
        assert record is not None
        return record.endpoint

    def starts(self, replica: int) -> int:
        path = self.folder / "cluster" / NAME / f"starts-{replica}"
        return len(path.read_text()) if path.exists() else 0

    async def row(self) -> DeploymentRow:
        row = await self.deployments.find(ID)
        assert row is not None
        return row


@pytest.fixture
async def start(database: Database, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def started(**options: Any) -> AsyncIterator[Replicated]:
            async with running_cluster(tmp_path) as cluster:
                world = Replicated(database, cluster, tmp_path, **options)
                await world.deploy()
                yield world
                await world.server.close()

        async def enter(**options: Any) -> Replicated:
            return await stack.enter_async_context(started(**options))

        yield enter


async def test_repeatedly_killed_replica_restarts_alone_each_time(
    start: Callable[..., Any],
) -> None:
    world: Replicated = await start(clock=SystemClock())
    await world.reconciler.start()
    await eventually(lambda: world.has(2), within_s=30)
    for number in range(4):
        victim = number % 2
        before, other = world.deployments.replicas(ID), world.pid(1 - victim)
        killed = await world.kill(victim)
        await eventually(lambda: world.has(1), within_s=30)
        assert world.deployments.replicas(ID) == (before[1 - victim],)
        await eventually(lambda: world.has(2), within_s=30)
        assert world.deployments.replicas(ID)[1 - victim] == before[1 - victim]
        assert world.pid(victim) != killed
        assert world.pid(1 - victim) == other
    await world.reconciler.stop()
    assert [world.starts(replica) for replica in (0, 1)] == [3, 3], "one a death"
    row = await world.row()
    assert (row.phase, row.restarts, world.given_up) == (Phase.READY, 0, [])


async def test_dying_replica_restarts_ever_more_rarely_beside_a_healthy_one(
    start: Callable[..., Any],
) -> None:
    world: Replicated = await start(script=SECOND_DIES)
    for _ in range(120):
        await world.reconciler.reconcile()
        await until(lambda: world.starts(1) == 0 or not is_live(world.pid(1)))
        world.clock.advance(1)
    assert 5 <= world.starts(1) <= 10, "three at once, then after 2, 4, 8 … seconds"
    assert world.starts(0) == 1
    row = await world.row()
    assert (row.phase, row.restarts, world.given_up) == (Phase.READY, 0, [])
    assert len(world.deployments.replicas(ID)) == 1


async def test_hanging_replica_is_out_of_use_and_restarts_alone(
    start: Callable[..., Any],
) -> None:
    world: Replicated = await start()
    await world.reconciled(2)
    first, second = world.deployments.replicas(ID)
    hanging, other = world.pid(1), world.pid(0)
    world.server.unheard.add(second)
    await world.reconciler.reconcile()
    assert await world.has(1)
    assert is_live(hanging)
    for _ in range(HANGS_AFTER):
        await world.reconciler.reconcile()
    assert not is_live(hanging)
    world.server.unheard.clear()
    await world.reconciled(2)
    assert world.deployments.replicas(ID)[0] == first
    assert (world.pid(0), (await world.row()).restarts) == (other, 0)


async def test_starting_replica_is_waited_for_when_the_last_one_dies(
    start: Callable[..., Any],
) -> None:
    world: Replicated = await start()
    await world.reconciled(2)
    await world.kill(1)
    await world.reconciler.reconcile()
    await world.has(1)
    starting = world.pid(1)
    world.server.unheard.add(world.endpoint(1))
    await world.kill(0)
    await world.reconciler.reconcile()
    assert await world.has(0)
    row = await world.row()
    assert (row.phase, row.restarts) == (Phase.RESTARTING, 0)
    for _ in range(HANGS_AFTER + 1):
        await world.reconciler.reconcile()
    world.server.unheard.clear()
    await world.reconciled(2)
    assert world.pid(1) == starting
    assert (await world.row()).phase is Phase.READY


async def test_when_both_die_that_is_one_restart(start: Callable[..., Any]) -> None:
    world: Replicated = await start()
    await world.reconciled(2)
    for replica in (0, 1):
        await world.kill(replica)
    await world.reconciled(2)
    assert ((await world.row()).restarts, world.given_up) == (1, [])
