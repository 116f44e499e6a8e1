"""Several clusters as one: placement by weight and capacity, regions that do not answer, moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobSpec,
    ReplicaPhase,
    ReplicaState,
)
from guanaco_server.clusters.federation import Federation, Region
from guanaco_server.clusters.memory import JobScript
from guanaco_server.clusters.placement import RegionShare, place, ranking
from tests.fixtures.failing_cluster import FailingCluster

SPEC = DeploymentSpec("m-tiny", ("serve",))
BOTH = {"eu": RegionShare(), "us": RegionShare()}


class World:
    def __init__(self, near: str = "eu", **shares: RegionShare) -> None:
        self.clusters = {name: FailingCluster() for name in ("eu", "us")}
        self.unready: set[str] = set()
        self.use(near, **(BOTH | shares))

    def use(self, near: str = "eu", **shares: RegionShare) -> None:
        """These settings, after a start of the platform."""
        regions = {name: Region(self.clusters[name], share) for name, share in shares.items()}
        self.federation = Federation(regions, self._is_ready, near)

    async def _is_ready(self, endpoint: str) -> bool:
        return endpoint not in self.unready

    async def seen(self) -> ReplicaState:
        state = await self.federation.observe(SPEC.name)
        assert state is not None
        return state

    async def regions(self) -> list[str]:
        state = await self.federation.observe(SPEC.name)
        return [each.region for each in state.replicas] if state else []

    @property
    def home(self) -> str:
        (home,) = [name for name, cluster in self.clusters.items() if cluster.deployments]
        return home

    @property
    def other(self) -> str:
        return self.other_than(self.home)

    @staticmethod
    def other_than(region: str) -> str:
        return {"eu": "us", "us": "eu"}[region]


async def test_a_deployment_has_one_home_and_its_endpoint_says_which() -> None:
    world = World()
    await world.federation.apply_deployment(SPEC)
    await world.federation.apply_deployment(SPEC)
    assert world.clusters[world.home].starts == [SPEC.name]
    seen = await world.seen()
    assert (seen.region, seen.is_settled, seen.problem) == (world.home, True, None)
    assert await world.federation.list_deployments() == [SPEC.name]
    await world.federation.delete(SPEC.name)
    assert await world.federation.observe(SPEC.name) is None


@pytest.mark.parametrize("near", ["eu", "us"])
async def test_submission_everywhere_is_given_with_the_near_region_first(near: str) -> None:
    world = World(near, eu=RegionShare(replicas=1), us=RegionShare(replicas=2))
    await world.federation.apply_deployment(replace(SPEC, replicas=2))
    assert (await world.regions())[0] == (await world.seen()).region == near
    assert {n: c.deployments[SPEC.name].spec.replicas for n, c in world.clusters.items()} == {
        "eu": 1,
        "us": 2,
    }
    world.clusters[near].die(SPEC.name, 9)
    seen = await world.seen()
    assert (seen.phase, seen.region) == (ReplicaPhase.RUNNING, world.other_than(near))
    assert not seen.is_settled, "applying again starts the one that died"
    await world.federation.apply_deployment(replace(SPEC, replicas=2))
    assert (await world.seen()).is_settled


async def test_a_region_that_does_not_answer_stops_no_other() -> None:
    world = World(eu=RegionShare(replicas=1), us=RegionShare(replicas=1))
    world.clusters["eu"].is_down = True
    await world.federation.start()
    await world.federation.apply_deployment(SPEC)
    assert await world.regions() == ["us"]
    world.clusters["us"].deployments[SPEC.name].lines.append("hello")
    assert (await world.federation.logs(SPEC.name))[0] == ["hello"]
    world.clusters["eu"].is_down = False
    assert not (await world.seen()).is_settled
    await world.federation.apply_deployment(SPEC)
    assert await world.regions() == ["eu", "us"]


async def test_last_state_of_a_silent_region_comes_with_a_problem() -> None:
    world = World()
    await world.federation.apply_deployment(SPEC)
    before = await world.seen()
    world.clusters[world.home].is_down = True
    seen = await world.seen()
    assert (seen.endpoint, seen.phase) == (before.endpoint, ReplicaPhase.RUNNING)
    assert seen.problem == f"Region {world.home} does not answer: connection refused."
    assert seen.is_settled, "its servers may well go on"


async def test_submission_given_up_in_a_silent_region_starts_elsewhere() -> None:
    world = World()
    await world.federation.apply_deployment(SPEC)
    home, other = world.home, world.other
    world.clusters[home].is_down = True
    await world.federation.delete(SPEC.name)
    assert await world.federation.observe(SPEC.name) is None
    await world.federation.apply_deployment(SPEC)
    assert await world.regions() == [other]
    world.clusters[home].is_down = False
    assert not (await world.seen()).is_settled
    await world.federation.apply_deployment(SPEC)
    await world.federation.apply_deployment(SPEC)
    assert len(await world.regions()) == 1
    assert (await world.seen()).is_settled


async def test_without_any_region_the_error_says_why() -> None:
    world = World()
    for cluster in world.clusters.values():
        cluster.is_down = True
    with pytest.raises(OSError, match="No region takes m-tiny: eu: connection refused; us:"):
        await world.federation.apply_deployment(SPEC)
    assert await world.federation.list_deployments() == []
    assert await world.federation.observe(SPEC.name) is None


async def test_region_without_weight_is_left_once_another_is_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    world = World()
    await world.federation.apply_deployment(SPEC)
    home, other = world.home, world.other
    world.use(**{home: RegionShare(weight=0), other: RegionShare()})
    assert not (await world.seen()).is_settled
    world.unready.add("memory://m-tiny/1")
    await world.federation.apply_deployment(SPEC)
    assert set(await world.regions()) == {"eu", "us"}, "both, until the new one is ready"
    world.unready.clear()
    await world.federation.apply_deployment(SPEC)
    assert await world.regions() == [other]
    assert f"moved m-tiny from {home} to {other}" in caplog.text
    assert (await world.seen()).is_settled


async def test_deployments_of_a_removed_region_start_elsewhere() -> None:
    world = World()
    await world.federation.apply_deployment(SPEC)
    other = world.other
    world.use(**{other: RegionShare()})
    assert await world.federation.observe(SPEC.name) is None
    await world.federation.apply_deployment(SPEC)
    assert await world.regions() == [other]


async def test_logs_of_several_regions_are_told_apart_and_read_once() -> None:
    world = World(eu=RegionShare(replicas=1), us=RegionShare(replicas=1))
    await world.federation.apply_deployment(SPEC)
    await world.federation.observe(SPEC.name)
    for name, cluster in world.clusters.items():
        cluster.deployments[SPEC.name].lines.append(f"I am {name}")
    lines, offset = await world.federation.logs(SPEC.name)
    assert lines == ["[eu] I am eu", "[us] I am us"]
    world.clusters["us"].deployments[SPEC.name].lines.append("more")
    assert await world.federation.logs(SPEC.name, offset) == (["[us] more"], offset + 1)
    assert len((await world.federation.logs(SPEC.name))[0]) == 3


async def test_jobs_run_in_the_near_region_unless_it_is_down() -> None:
    world = World("us")

    async def ignore(line: str) -> None:
        """Nobody reads it."""

    for cluster in world.clusters.values():
        cluster.job = JobScript()
    await world.federation.run_job(JobSpec("s-1", ("job",)), ignore)
    world.clusters["us"].is_down = True
    await world.federation.list_deployments()
    await world.federation.run_job(JobSpec("s-2", ("job",)), ignore)
    assert [job.name for job in world.clusters["us"].jobs] == ["s-1"]
    assert [job.name for job in world.clusters["eu"].jobs] == ["s-2"]


async def test_a_full_region_takes_no_more() -> None:
    world = World(eu=RegionShare(weight=1_000, capacity=1))
    for number in range(3):
        await world.federation.apply_deployment(replace(SPEC, name=f"m-{number}"))
    assert len(world.clusters["eu"].deployments) == 1
    assert len(world.clusters["us"].deployments) == 2


def test_each_region_gets_its_weights_share() -> None:
    regions = {"a": RegionShare(3), "b": RegionShare(1), "c": RegionShare(0)}
    homes = Counter(ranking(f"m-{number}", regions)[0] for number in range(4_000))
    assert homes["a"] == pytest.approx(3_000, rel=0.05)
    assert homes["c"] == 0


names = st.text(min_size=1, max_size=20)
shares = st.builds(
    RegionShare, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 3), st.integers(0, 2)
)
some_regions = st.dictionaries(st.sampled_from("abcd"), shares, max_size=4)


@given(names, some_regions, st.sampled_from("abcd"))
def test_a_region_that_goes_moves_only_its_own(
    name: str, regions: dict[str, RegionShare], gone: str
) -> None:
    left = {region: share for region, share in regions.items() if region != gone}
    assert [region for region in ranking(name, regions) if region != gone] == ranking(name, left)


@given(names, st.integers(1, 5), some_regions, st.sets(st.sampled_from("abcd")))
def test_enough_replicas_are_placed_and_placing_again_changes_nothing(
    name: str, replicas: int, regions: dict[str, RegionShare], present: set[str]
) -> None:
    placed = place(name, replicas, regions, present, {})
    assert all(regions[region].weight > 0 and count > 0 for region, count in placed.items())
    if ranking(name, regions):
        assert sum(placed.values()) >= replicas
        assert place(name, replicas, regions, placed, {}) == placed
