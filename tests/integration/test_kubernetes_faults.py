"""Tests what goes wrong in a cluster, and what the platform makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState, Resources
from guanaco_server.clusters.kubernetes import status as problems
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.jobs import WAITS
from tests.fixtures.kubernetes import (
    FakeWorld,
    Lines,
    LinesAcrossCuts,
    fake_world,
    job,
    phase,
    scripted,
    shell,
    until,
)

pytestmark = pytest.mark.slow

NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes"
QUOTA = 'pods "m-tiny-1" is forbidden: exceeded quota: models, requested: pods=1, used: pods=4'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(world: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with world.cluster(patience_s=30, timeout_s=30) as cluster:
        yield cluster


@pytest.fixture
async def hasty(world: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with world.cluster(patience_s=3, timeout_s=0.5) as cluster:
        yield cluster


async def exited(cluster: KubernetesCluster, name: str = "m-tiny") -> ReplicaState | None:
    state = await cluster.observe(name)
    return state if state and state.phase is ReplicaPhase.EXITED else None


async def test_server_without_its_gpu_kind_waits_then_reports_it(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    cluster._options = replace(cluster._options, pending_s=600)
    world.kubelet.no_room["m-tiny"] = NO_GPU
    await cluster.apply_deployment(
        replace(scripted(), resources=Resources(gpu_type="H100", gpu_count=1))
    )

    async def waits() -> bool:
        state = await cluster.observe("m-tiny")
        return state is not None and state.phase is ReplicaPhase.RUNNING and bool(state.problem)

    await until(waits)
    cluster._options = replace(cluster._options, pending_s=0)
    state = await until(lambda: exited(cluster))
    assert state.exit_code is None
    assert str(state.problem).startswith("No machine has 1 NVIDIA GPU of the kind it needs free:")


async def test_unknown_gpu_kind_is_refused_at_once(
    world: FakeWorld,
) -> None:
    options = replace(world.options(), gpu_nodes={"H100": {"gpu": "h100"}})
    cluster = KubernetesCluster(world.api(), options)
    asked = Resources(gpu_type="MI300X", gpu_count=1)
    with pytest.raises(ClusterRefused, match="no MI300X"):
        await cluster.apply_deployment(replace(scripted(), resources=asked))


async def test_exceeded_quota_is_reported_for_job_and_server(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    cluster._options = replace(cluster._options, pending_s=0)
    world.kubelet.no_quota[""] = QUOTA
    with pytest.raises(ClusterRefused, match=r"^The cluster's quota does not allow it: exceeded"):
        await cluster.run_job(job("true"), Lines().take)
    await cluster.apply_deployment(scripted())
    state = await until(lambda: exited(cluster))
    assert "exceeded quota: models" in str(state.problem)


async def test_missing_image_is_reported_for_job_and_server(
    cluster: KubernetesCluster, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "IMAGE_S", 0.0)
    world.kubelet.no_image.add("")
    with pytest.raises(ClusterRefused, match=r"image registry.test/serializer:1 cannot be pulled"):
        await cluster.run_job(job("true"), Lines().take)
    await cluster.apply_deployment(scripted())
    state = await until(lambda: exited(cluster))
    assert "registry.test/engine:1 cannot be pulled" in str(state.problem)


async def test_a_command_that_is_not_in_the_image_is_told(cluster: KubernetesCluster) -> None:
    result = await cluster.run_job(replace(job(""), command=("/no/such/program",)), Lines().take)
    assert result.exit_code == 128
    assert "cannot be started" in str(result.problem)


async def test_evicted_job_continues_in_another_pod(
    cluster: KubernetesCluster, world: FakeWorld, tmp_path: Path
) -> None:
    lines = Lines()
    done = tmp_path / "half"
    script = f"if [ -e {done} ]; then echo second; else touch {done}; echo first; sleep 600; fi"
    running = asyncio.create_task(cluster.run_job(job(script), lines.take))
    await until(lambda: has(lines, "first"))
    world.kubelet.evict("s-job")
    result = await running
    assert (result.exit_code, result.problem) == (0, None)
    assert lines == ["first", "second"]


async def has(lines: Lines, line: str) -> bool:
    return line in lines


async def test_job_and_server_out_of_memory_report_it(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    lines = Lines()
    asked = Resources(memory_bytes=1_000_000_000)
    given = replace(job("echo begun; sleep 600"), resources=asked)
    running = asyncio.create_task(cluster.run_job(given, lines.take))
    await until(lambda: has(lines, "begun"))
    world.kubelet.run_out_of_memory("s-job")
    result = await running
    assert result.exit_code == 137
    assert result.problem == "It ran out of memory: 1,000,000,000 bytes are its limit."

    await cluster.apply_deployment(shell("m-tiny", "echo begun; sleep 600"))
    await until(lambda: has_said(cluster, "begun"))
    world.kubelet.run_out_of_memory("m-tiny")
    state = await until(lambda: exited(cluster))
    assert (state.exit_code, state.problem) == (137, "It ran out of memory.")


async def has_said(cluster: KubernetesCluster, line: str) -> bool:
    return line in (await cluster.logs("m-tiny"))[0]


@pytest.mark.parametrize(("status", "sentence"), [(401, "does not know"), (403, "does not allow")])
async def test_credentials_that_do_not_do_are_one_sentence(
    cluster: KubernetesCluster, world: FakeWorld, status: int, sentence: str
) -> None:
    world.server.faults.answer(status)
    with pytest.raises(ClusterRefused, match=sentence) as refused:
        await cluster.apply_deployment(scripted())
    assert str(refused.value).count(". ") == 0
    world.server.faults.end()
    await cluster.apply_deployment(scripted())
    assert await phase(cluster) is ReplicaPhase.RUNNING


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_what_passes_is_waited_for(
    cluster: KubernetesCluster, world: FakeWorld, status: int
) -> None:
    world.server.faults.answer(status, times=3, only="PATCH")
    await cluster.apply_deployment(scripted())
    assert await phase(cluster) is ReplicaPhase.RUNNING
    assert len(world.server.faults.refused) == 3


async def test_silent_api_is_waited_for(world: FakeWorld) -> None:
    async with world.cluster(patience_s=30, timeout_s=0.5) as cluster:
        world.server.faults.be_silent()
        before = len(world.server.requests)
        applying = asyncio.create_task(cluster.apply_deployment(scripted()))

        async def is_asked_again() -> bool:
            asked = [one for one in world.server.requests[before:] if one.startswith("PATCH")]
            return len(asked) > 1

        await until(is_asked_again)
        assert not applying.done()
        world.server.faults.end()
        await applying
        assert await phase(cluster) is ReplicaPhase.RUNNING


@pytest.mark.parametrize("status", [500, None])
async def test_unreachable_api_is_reported_and_running_servers_keep_running(
    hasty: KubernetesCluster, world: FakeWorld, status: int | None
) -> None:
    await hasty.apply_deployment(scripted())
    await until(lambda: is_up(world))
    world.server.faults.cut_streams()
    if status is None:
        world.server.faults.be_silent()
    else:
        world.server.faults.answer(status)
    with pytest.raises(ClusterUnreachable, match="Kubernetes API"):
        await hasty.apply_deployment(scripted("m-other"))
    assert await phase(hasty) is ReplicaPhase.RUNNING
    world.server.faults.end()


async def is_up(world: FakeWorld) -> bool:
    return bool(world.kubelet.processes)


async def test_no_log_line_is_lost_or_repeated_across_cuts(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    lines = LinesAcrossCuts(world, 50)
    assert (await cluster.run_job(job(lines.script), lines.take)).exit_code == 0
    assert lines == lines.all


async def test_a_watch_whose_place_in_history_is_forgotten_lists_again(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    world.server.faults.answer(503, only="GET")
    world.server.faults.cut_streams()

    async def cannot_watch() -> bool:
        return any(one.endswith("/deployments") for one in world.server.faults.refused)

    await until(cannot_watch)
    world.server.store.delete(("deployments", "models", "m-tiny"))
    world.server.store.forget_history()
    world.server.faults.end()

    async def is_gone() -> bool:
        return await cluster.observe("m-tiny") is None

    await until(is_gone)


async def test_two_workers_that_apply_at_once_make_one_server(world: FakeWorld) -> None:
    async with world.cluster("worker-1") as one, world.cluster("worker-2") as other:
        await asyncio.gather(
            *(cluster.apply_deployment(scripted()) for cluster in (one, other) * 3)
        )
        await until(lambda: is_up(world))
        assert len(world.server.store.all("deployments")) == 1
        assert len(world.kubelet.pods("m-tiny")) == 1
        for cluster in (one, other):
            assert await cluster.list_deployments() == ["m-tiny"]


async def test_what_somebody_deleted_comes_back_when_it_is_applied_again(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    before = world.left()
    for plural in ("poddisruptionbudgets", "networkpolicies", "secrets"):
        world.server.store.delete((plural, "models", "m-tiny"))
    await cluster.apply_deployment(scripted())
    assert {line for line in before if "pods/" not in line} <= set(world.left())


async def test_leaving_deployment_waits_for_its_pods_but_frees_its_name(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted())
    await until(lambda: is_up(world))
    first = world.server.store.get(("deployments", "models", "m-tiny"))
    with world.kubelet.paused():
        world.server.store.delete(("deployments", "models", "m-tiny"), "Foreground")

        async def is_going() -> bool:
            return await cluster.observe("m-tiny") is None

        await until(is_going)
        await cluster.apply_deployment(scripted())
    second = world.server.store.get(("deployments", "models", "m-tiny"))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_job_that_somebody_deletes_has_ended(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    lines = Lines()
    running = asyncio.create_task(cluster.run_job(job("echo begun; sleep 600"), lines.take))
    await until(lambda: has(lines, "begun"))
    world.server.store.delete(("jobs", "models", "s-job"))
    result = await running
    assert result.exit_code == 137
    assert result.problem == "The job was deleted from the cluster before it had ended."


async def test_a_namespace_that_is_refused_is_told_before_anything_starts(world: FakeWorld) -> None:
    cluster = KubernetesCluster(world.api(), world.options())
    world.server.faults.answer(403)
    with pytest.raises(ClusterRefused, match="a fault of the tests"):
        await cluster.check()


async def test_second_worker_with_the_same_job_waits_for_the_first(
    world: FakeWorld, tmp_path: Path
) -> None:
    lines, others = Lines(), Lines()
    at_once, may_end = tmp_path / "one", tmp_path / "end"
    work = job(
        f"echo begun; [ -e {at_once} ] && exit 3; touch {at_once}; "
        f"while [ ! -e {may_end} ]; do sleep 0.02; done; rm {at_once}"
    )

    async def one_runs_and_one_waits() -> bool:
        return sorted([*lines, *others]) == [WAITS, "begun"]

    async with world.cluster("worker-1") as one, world.cluster("worker-2") as other:
        running = asyncio.gather(one.run_job(work, lines.take), other.run_job(work, others.take))
        await until(one_runs_and_one_waits)
        may_end.touch()
        results = await running
    assert [result.exit_code for result in results] == [0, 0]
    assert sorted(map(len, (lines, others))) == [1, 2]
    assert [lines[-1], others[-1]] == ["begun", "begun"]


async def test_consecutive_runs_of_one_job_do_not_mix_their_ends(
    cluster: KubernetesCluster,
) -> None:
    for code in (3, 0, 4):
        assert (await cluster.run_job(job(f"exit {code}"), Lines().take)).exit_code == code
