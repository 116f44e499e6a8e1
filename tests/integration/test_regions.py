"""The reconciler over two regions: one goes silent, one is drained, one is taken out of the settings."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco_server.clusters.federation import Federation, Region
from guanaco_server.clusters.placement import RegionShare
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow
from tests.fixtures.failing_cluster import FailingCluster
from tests.fixtures.reconciling import compute_of, deployments_of, reconciler_of
from tests.fixtures.world import World

ID = "acme-tiny_v1"
NAME = deployment_name(ID)


class Regional(World):
    """A deployment that is ready, in the regions of the settings."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.regions = {"eu": FailingCluster(), "us": FailingCluster()}

    async def start(self, **shares: RegionShare) -> None:
        """A platform with these settings, looking after what it finds."""
        federation = Federation(
            {name: Region(self.regions[name], share) for name, share in shares.items()},
            self.model_server.is_healthy,
            near="eu",
        )
        compute = compute_of(self, cluster=federation, regions=frozenset(shares))
        self.deployments = deployments_of(self, federation)
        self.reconciler = reconciler_of(self, self._give_up, compute)

    async def deploy(self) -> None:
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        deployment = Deployment(ID, 1, "a" * 64, 1_096)
        await self.deployments.wish(deployment)
        await self.deployments.servers.apply(deployment)
        seen = await self.deployments.servers.look(ID)
        await self.deployments.mark_ready(ID, seen.endpoints[0])
        await self.reconciler.reconcile()

    async def row(self) -> DeploymentRow:
        row = await self.deployments.find(ID)
        assert row is not None
        return row

    def homes(self) -> list[str]:
        return [name for name, cluster in self.regions.items() if NAME in cluster.deployments]

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        raise AssertionError(f"{submission_id} was given up")


@pytest.fixture
async def world(database: Database) -> Regional:
    """At first everything is in eu, the near one."""
    world = Regional(database)
    await world.start(eu=RegionShare(weight=1_000_000), us=RegionShare(weight=1e-6))
    await world.deploy()
    assert world.homes() == ["eu"]
    assert (await world.row()).region == "eu"
    return world


async def test_servers_stay_in_use_while_only_region_control_is_silent(
    world: Regional, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.deployments.replicas(ID)
    world.regions["eu"].is_down = True
    for _ in range(HANGS_AFTER * 2):
        await world.reconciler.reconcile()
    assert world.deployments.replicas(ID) == before
    assert world.homes() == ["eu"]
    assert caplog.text.count("Region eu does not answer: connection refused.") == 1


async def test_servers_of_a_silent_region_start_in_the_other(
    world: Regional,
) -> None:
    world.regions["eu"].is_down = True
    world.model_server.unhealthy.update(world.deployments.replicas(ID))
    for _ in range(HANGS_AFTER + 2):
        await world.reconciler.reconcile()
    world.model_server.unhealthy.clear()
    await world.reconciler.reconcile()
    assert world.homes() == ["eu", "us"], "what eu still has nobody can stop yet"
    assert (await world.row()).region == "us"
    world.regions["eu"].is_down = False
    for _ in range(3):
        world.clock.advance(60)
        await world.reconciler.reconcile()
    assert len(world.homes()) == 1
    assert world.deployments.replicas(ID)


async def test_submission_in_two_regions_loses_nothing_with_one(
    world: Regional,
) -> None:
    await world.start(eu=RegionShare(replicas=1), us=RegionShare(replicas=1))
    for _ in range(2):
        await world.reconciler.reconcile()
    assert len(world.deployments.replicas(ID)) == 2
    world.regions["eu"].die(NAME)
    await world.reconciler.reconcile()
    assert world.homes() == ["eu", "us"]
    assert len(world.deployments.replicas(ID)) == 1
    assert (await world.row()).restarts == 0, "it never stopped serving"


async def test_a_drained_region_is_left_without_a_gap(
    world: Regional, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.start(eu=RegionShare(weight=0), us=RegionShare())
    for _ in range(4):
        await world.reconciler.reconcile()
        assert world.deployments.replicas(ID)
    assert world.homes() == ["us"]
    assert f"moved {NAME} from eu to us" in caplog.text


async def test_region_removed_from_settings_is_emptied_and_logged(
    world: Regional, caplog: pytest.LogCaptureFixture
) -> None:
    await world.start(us=RegionShare())
    await world.reconciler.start()
    await world.reconciler.stop()
    await world.reconciler.reconcile()
    assert f"moving {ID}: its region eu is no longer in the settings" in caplog.text
    row = await world.row()
    assert (row.region, row.restarts) == ("us", 0)
    assert world.deployments.replicas(ID)
