"""Tests that of two platforms on one database and one cluster only the one that leads scales and reconciles, in the product's own assembly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from guanaco.accounts import Role
from guanaco_server.clusters.leadership import AlwaysLeading
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import Phase
from tests.fixtures.scaled import IDLE_S, Scaled
from tests.fixtures.world import World, eventually

ID = "acme-tiny_v1"


class Follows(AlwaysLeading):
    """Another platform leads; this one asks again at each turn of its loops."""

    def __init__(self) -> None:
        self.asked = 0

    def is_leading(self) -> bool:
        self.asked += 1
        return False


class Follower(World):
    """A second platform beside ``leader``, of the same database and the same cluster."""

    def __init__(self, leader: Scaled) -> None:
        super().__init__(
            leader.database, **{**leader.changes, "feedback_target": 1, "scale_interval_s": 0.01}
        )
        self.leadership = Follows()
        compute = replace(leader.adapters.compute, leadership=self.leadership)
        self.adapters = replace(leader.adapters, compute=compute)
        self.restart()

    async def has_asked(self) -> bool:
        return self.leadership.asked >= 3


class Quick(Scaled):
    changes = {**Scaled.changes, "scale_interval_s": 0.01}


async def idle(database: Database) -> Quick:
    """A platform whose one submission has its rating and no traffic: it should sleep."""
    leader = Quick(database, feedback_target=1)
    await leader.serve(ID)
    http = await leader.http(Role.BACKEND, "app")
    await leader.rate(http, await leader.open(http))
    leader.clock.advance(IDLE_S + 1)
    return leader


@asynccontextmanager
async def scaling(world: World) -> AsyncIterator[None]:
    """The autoscaler's loop as the platform runs it."""
    autoscaler = world.platform.rooms.scaling.autoscaler
    await autoscaler.start()
    try:
        yield
    finally:
        await autoscaler.stop()


async def test_only_the_leading_platform_scales(database: Database) -> None:
    leader = await idle(database)
    follower = Follower(leader)
    async with scaling(follower):
        await eventually(follower.has_asked)
        assert await leader.phase(ID) is Phase.READY
        async with scaling(leader):
            await eventually(lambda: _is_asleep(leader))


async def test_only_the_leading_platform_reconciles(database: Database) -> None:
    leader = await idle(database)
    follower = Follower(leader)
    (name,) = leader.cluster.deployments
    leader.cluster.die(name)
    await follower.reconciler.reconcile()
    assert await leader.phase(ID) is Phase.READY
    assert follower.deployments.replicas(ID) == leader.deployments.replicas(ID)
    await leader.reconciler.reconcile()
    assert await leader.phase(ID) is Phase.RESTARTING
    assert leader.cluster.starts == [name, name]


async def _is_asleep(world: Scaled) -> bool:
    return await world.phase(ID) is Phase.SLEEPING
