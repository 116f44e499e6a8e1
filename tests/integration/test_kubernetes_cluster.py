"""The cluster port on the fake Kubernetes, with commands that really run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from guanaco_server.clusters.cluster import ReplicaPhase
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from tests.fixtures.kubernetes import (
    FakeWorld,
    Lines,
    fake_world,
    job,
    phase,
    scripted,
    shell,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(world: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with world.cluster() as cluster:
        yield cluster


async def answers(cluster: KubernetesCluster, name: str = "m-tiny") -> bool:
    state = await cluster.observe(name)
    if state is None:
        return False
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{state.endpoint}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def test_deployment_serves_at_its_address_and_reapplying_changes_nothing(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    await until(lambda: answers(cluster))
    before = world.server.store.get(("deployments", "models", "m-tiny"))
    pods = world.kubelet.pods("m-tiny")
    await cluster.apply_deployment(scripted())
    after = world.server.store.get(("deployments", "models", "m-tiny"))
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert [pod["metadata"]["uid"] for pod in world.kubelet.pods("m-tiny")] == [
        pod["metadata"]["uid"] for pod in pods
    ]
    assert await cluster.list_deployments() == ["m-tiny"]


async def test_another_spec_replaces_the_pod_ending_old_requests(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    await until(lambda: answers(cluster))
    (first,) = world.kubelet.pods("m-tiny")
    with world.kubelet.paused():
        await cluster.apply_deployment(scripted("m-tiny", "--name", "other"))
        assert not await answers(cluster)
    await until(lambda: answers(cluster))

    async def alone() -> bool:
        uids = [pod["metadata"]["uid"] for pod in world.kubelet.pods("m-tiny")]
        return len(uids) == 1 and uids != [first["metadata"]["uid"]]

    await until(alone)


async def test_secrets_reach_the_server_and_other_ones_leave_it_alone(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    given = shell("m-tiny", "echo $TOKEN; sleep 600")
    await cluster.apply_deployment(replace(given, secrets={"TOKEN": "first"}))
    assert await until(lambda: said(cluster)) == ["first"]
    deployment = world.server.store.get(("deployments", "models", "m-tiny"))
    assert "first" not in str(deployment)
    before = world.kubelet.pods("m-tiny")[0]["metadata"]["uid"]
    await cluster.apply_deployment(replace(given, secrets={"TOKEN": "second"}))
    await world.kubelet.settle()
    assert world.kubelet.pods("m-tiny")[0]["metadata"]["uid"] == before


async def said(cluster: KubernetesCluster, name: str = "m-tiny") -> list[str]:
    lines, _ = await cluster.logs(name)
    return lines


async def test_dead_server_shows_exit_status_and_log_and_restarts(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    spec = shell("m-tiny", "echo no weights; echo here; exit 7")
    await cluster.apply_deployment(spec)
    await until(lambda: has_exited(cluster))
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert (state.exit_code, state.problem) == (7, None)
    lines, offset = await cluster.logs("m-tiny")
    assert lines == ["no weights", "here"]
    assert await cluster.logs("m-tiny", offset) == ([], offset)
    first = world.kubelet.pods("m-tiny")[0]["metadata"]["uid"]
    with world.kubelet.paused():
        await cluster.apply_deployment(spec)
        assert await phase(cluster) is ReplicaPhase.RUNNING
    await until(lambda: has_exited(cluster))
    assert world.kubelet.pods("m-tiny")[0]["metadata"]["uid"] != first


async def has_exited(cluster: KubernetesCluster, name: str = "m-tiny") -> bool:
    return await phase(cluster, name) is ReplicaPhase.EXITED


async def test_a_log_is_read_on_from_where_one_was(cluster: KubernetesCluster) -> None:
    await cluster.apply_deployment(
        shell("m-tiny", "for i in 1 2 3 4 5; do echo é$i; done; sleep 600")
    )

    async def all_said() -> bool:
        return len(await said(cluster)) == 5

    await until(all_said)
    lines, offset = await cluster.logs("m-tiny")
    assert offset == sum(len(line.encode()) + 1 for line in lines)
    assert (await cluster.logs("m-tiny", 8))[0] == ["é3", "é4", "é5"]


async def test_a_deleted_server_is_gone_with_all_that_it_owned(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    assert {line.partition("/")[0] for line in world.left()} >= {
        "deployments", "secrets", "networkpolicies", "poddisruptionbudgets",
    }  # fmt: skip
    await cluster.delete("m-tiny")
    await cluster.delete("m-tiny")
    await until(lambda: nothing_left(world))
    assert world.kubelet.processes == {}
    assert await cluster.observe("m-tiny") is None


async def test_replicas_come_and_go_without_another_spec(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    (first,) = await until(lambda: pods(world, 1))
    await cluster.apply_deployment(scripted(replicas=2))
    assert first["metadata"]["uid"] in [
        pod["metadata"]["uid"] for pod in await until(lambda: pods(world, 2))
    ]
    await cluster.apply_deployment(scripted(replicas=1))
    await until(lambda: pods(world, 1))


async def pods(world: FakeWorld, count: int) -> list[dict[str, dict[str, str]]]:
    found = world.kubelet.pods("m-tiny")
    return found if len(found) == count else []


async def test_job_yields_lines_and_exit_status_and_leaves_nothing(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    lines = Lines()
    result = await cluster.run_job(job("echo one; echo two >&2; printf three; exit 4"), lines.take)
    assert lines == ["one", "two", "three"]
    assert (result.exit_code, result.last_lines) == (4, ("one", "two", "three"))
    await until(lambda: nothing_left(world))


async def nothing_left(world: FakeWorld) -> bool:
    return world.left() == []


async def test_a_job_that_ends_well(cluster: KubernetesCluster) -> None:
    lines = Lines()
    given = replace(job("echo $TOKEN"), secrets={"TOKEN": "$(HOME) `x`"})
    assert (await cluster.run_job(given, lines.take)).exit_code == 0
    assert lines == ["$(HOME) `x`"]


async def test_cancelling_a_job_deletes_it(cluster: KubernetesCluster, world: FakeWorld) -> None:
    lines = Lines()
    running = asyncio.create_task(cluster.run_job(job("echo begun; sleep 600"), lines.take))

    async def has_begun() -> bool:
        return bool(lines)

    await until(has_begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.left() == []
    assert world.kubelet.processes == {}


async def test_a_job_that_takes_too_long_is_stopped(cluster: KubernetesCluster) -> None:
    with pytest.raises(TimeoutError):
        await cluster.run_job(job("sleep 600", timeout_s=1), Lines().take)


async def test_a_job_of_the_same_name_stops_the_earlier_one(cluster: KubernetesCluster) -> None:
    lines = Lines()
    earlier = asyncio.create_task(cluster.run_job(job("echo begun; sleep 600"), lines.take))

    async def has_begun() -> bool:
        return bool(lines)

    await until(has_begun)
    assert (await cluster.run_job(job("true"), lines.take)).exit_code == 0
    with pytest.raises(asyncio.CancelledError):
        await earlier


async def test_restarted_platform_finds_its_servers_and_stops_its_jobs(
    world: FakeWorld,
) -> None:
    lines = Lines()

    async def both_begun() -> bool:
        return lines.count("begun") == 2

    async with world.cluster("worker-2") as other:
        theirs = asyncio.create_task(other.run_job(job("echo begun; sleep 600", "s-2"), lines.take))
        async with world.cluster("worker-1") as first:
            await first.apply_deployment(scripted())
            ours = asyncio.create_task(
                first.run_job(job("echo begun; sleep 600", "s-1"), lines.take)
            )
            await until(both_begun)
            async with world.cluster("worker-1") as second:
                assert await second.list_deployments() == ["m-tiny"]
                result = await ours
                assert "deleted" in (result.problem or "")
                assert "jobs/s-2" in world.left()
        theirs.cancel()
        await asyncio.gather(theirs, return_exceptions=True)
    assert "deployments/m-tiny" in world.left()


@pytest.mark.parametrize("name", ["m-" + "x" * 80, "M_odd.Name", "1-digit"])
async def test_odd_names_and_ids_are_carried_in_full(
    cluster: KubernetesCluster, world: FakeWorld, name: str
) -> None:
    spec = replace(shell(name, "sleep 600"), submission_id="Ünïcode/" + "y" * 90)
    await cluster.apply_deployment(spec)
    assert await cluster.list_deployments() == [name]
    (found,) = world.server.store.all("deployments")
    assert len(found["metadata"]["name"]) <= 63
    assert found["metadata"]["annotations"]["guanaco.dev/submission"] == spec.submission_id

    async def has_pod() -> bool:
        return len(world.kubelet.pods(name)) == 1

    await until(has_pod)
    await cluster.delete(name)
    await until(lambda: nothing_left(world))
