"""Model servers that are started ahead of demand: when, when not, and who takes them.

The cluster and the model servers are in memory here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.scaling.spares import LOOK_S
from tests.integration.test_swaps import FIRST, KEYS, LLAMA, OTHER, SECOND, THIRD, Hot, take


class Ahead(Hot):
    """A world in which two requests for servers of one shape start one ahead."""

    changes = {**Hot.changes, "hot_engine_requests": 2, "preempt_quiet_s": 50}

    async def make_all(self, folder: Path) -> None:
        for key in KEYS.values():
            await self.make_artifact(folder, key, LLAMA)

    async def serve_two(self) -> None:
        """Serve two submissions while there is no room for a spare."""
        self.cluster.has_room = False
        for submission_id in (FIRST, SECOND):
            await self.serve_known(submission_id)
        self.cluster.has_room = True

    async def look(self) -> None:
        self.clock.advance(LOOK_S + 1)
        await self.reconciler.reconcile()

    def spares(self) -> list[str]:
        """The servers on the cluster that were started ahead."""
        return [name for name in self.cluster.deployments if name.startswith("m-spare-")]

    async def spare(self, folder: Path) -> str:
        """Serve two submissions of one shape, and return the name of the server that is started then."""
        await self.make_all(folder)
        await self.serve_two()
        await self.look()
        (name,) = self.spares()
        return name

    async def idle(self) -> dict[str, int]:
        rows, spares = await self.deployments.list_wishes(), await self.deployments.spares.list()
        return await self.platform.rooms.deployments.idle.count(rows, spares)


async def test_a_server_is_started_ahead_and_taken_over(database: Database, tmp_path: Path) -> None:
    world = Ahead(database)
    name = await world.spare(tmp_path)
    assert await world.idle() == {"sleeping": 0, "spare": 0, "starting": 1}
    spec = world.cluster.deployments[name].spec
    assert world.store.uri(KEYS[SECOND]) in spec.command, "what was asked for last"
    world.restart()  # another process goes on
    await world.look()
    assert await world.idle() == {"sleeping": 0, "spare": 1, "starting": 0}
    endpoint = world.cluster.deployments[name].state.endpoint
    world.model_server.artifacts[endpoint] = KEYS[SECOND]
    world.cluster.starts.clear()
    await world.ask(THIRD, "bob")
    taken, found = await take(world, THIRD)
    assert (found, deployment_name(taken.server_key)) == (endpoint, name)
    assert world.cluster.starts == []
    assert world.model_server.artifacts[endpoint] == KEYS[THIRD]


async def test_a_spare_that_hangs_is_replaced_before_it_is_taken(
    database: Database, tmp_path: Path
) -> None:
    world = Ahead(database)
    name = await world.spare(tmp_path)
    await world.look()
    endpoint = world.cluster.deployments[name].state.endpoint
    world.model_server.unhealthy.add(endpoint)
    for _ in range(HANGS_AFTER):
        assert world.spares() == [name]
        await world.look()
    await world.look()
    (other,) = world.spares()
    assert other != name


async def test_what_is_served_comes_before_a_server_ahead(
    database: Database, tmp_path: Path
) -> None:
    world = Ahead(database)
    await world.make_all(tmp_path)
    await world.serve_known(FIRST)
    await world.look()
    assert world.spares() == [], "one request says nothing of the next"
    world.cluster.has_room = False
    await world.serve_known(OTHER)
    await world.look()
    assert world.spares() == [], "the cluster has no room"
    world.cluster.has_room = True
    await world.ask(THIRD, "bob")
    await world.look()
    assert world.spares() == [], "a submission is being checked"
    async with database.write() as session:
        await world.deployments.withdraw(session, THIRD)
    await world.deployments.put_to_sleep(OTHER, world.clock.now())
    await world.look()
    assert world.spares() == [], "one waits already"
    async with database.write() as session:
        await world.deployments.withdraw(session, OTHER)
    world.clock.advance(world.settings.hot_engine_s + 1)
    await world.look()
    assert world.spares() == [], "it was asked for long ago"


async def test_a_server_ahead_stays_within_the_budget(database: Database, tmp_path: Path) -> None:
    world = Ahead(database, servers=2)
    await world.make_all(tmp_path)
    await world.serve_two()
    await world.look()
    assert world.spares() == []


async def test_the_same_model_joins_a_server_that_starts(
    database: Database, tmp_path: Path
) -> None:
    world = Ahead(database)
    await world.make_all(tmp_path)
    await world.serve_two()
    async with database.write() as session:
        await world.deployments.withdraw(session, SECOND)
    await world.look()
    (name,) = world.spares()
    world.cluster.starts.clear()
    given = await world.deployments.wish(
        replace(world.deployment(THIRD), artifact_key=KEYS[SECOND])
    )
    assert deployment_name(given.server_key) == name
    await world.deployments.servers.apply(given)
    assert world.cluster.starts == []
    assert await world.deployments.spares.list() == []


async def test_a_server_that_does_not_get_ready_is_tried_rarely(
    database: Database, tmp_path: Path
) -> None:
    world = Ahead(database)
    name = await world.spare(tmp_path)
    for _ in range(12):
        for spare in world.spares():
            world.cluster.die(spare)
        await world.look()
    started = {start for start in world.cluster.starts if start.startswith("m-spare-")}
    assert name in started
    assert len(started) == 3
    assert world.spares() == []


async def test_a_spare_makes_room_for_a_submission(database: Database, tmp_path: Path) -> None:
    world = Ahead(database, servers=3)
    await world.spare(tmp_path)
    await world.ask(OTHER, "bob")
    for _ in range(3):
        await world.look()
    assert world.spares() == []
    assert await world.deployments.waits_for(OTHER) is None


async def test_a_start_that_was_cut_short_leaves_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Ahead(database)
    await world.make_all(tmp_path)

    async def never(spec: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(world.cluster, "apply_deployment", never)
        ahead = Deployment("spare-1", 1, KEYS[FIRST], 1_096)
        with pytest.raises(asyncio.CancelledError):
            await world.deployments.spares.start_ahead(ahead)
    assert len(await world.deployments.spares.list()) == 1
    await world.look()
    assert await world.deployments.spares.list() == []
