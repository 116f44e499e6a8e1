"""Several replicas of one deployment on this machine, as real processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.local.servers import TEMPORARY_NAME
from guanaco_server.deployments.engines.health import HANGS_AFTER, ServerState, look
from guanaco_server.deployments.model_servers.model_server import Generation
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.reconciling.hangs import HangDetector
from guanaco_server.runtime.clock import SystemClock
from tests.fixtures.local_cluster import (
    IMPORTS,
    is_live,
    leader,
    listens,
    make_cluster,
    running_cluster,
    scripted,
    shell,
    until,
)

pytestmark = pytest.mark.slow

TWO = replace(scripted(), replicas=2)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with running_cluster(tmp_path) as cluster:
        yield cluster


async def seen(cluster: LocalCluster) -> ReplicaState:
    state = await cluster.observe("m-tiny")
    assert state is not None
    return state


async def endpoints(cluster: LocalCluster) -> list[str]:
    return [replica.endpoint for replica in (await seen(cluster)).replicas]


async def kill(folder: Path, replica: int) -> None:
    """kill -9, until it is dead."""
    pid = leader(folder, replica=replica)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_live(pid))


async def test_each_replica_has_its_own_port_and_log(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.apply_deployment(TWO)
    first, second = await endpoints(cluster)
    assert first != second
    await until(lambda: listens(first) and listens(second))
    for number, endpoint in enumerate((first, second)):
        log = tmp_path / "cluster" / "m-tiny" / str(number) / "server.log"
        assert log.read_text() == f"scripted engine on port {endpoint.rpartition(':')[2]}\n"
    assert (await seen(cluster)).endpoint == first
    assert await cluster.list_deployments() == ["m-tiny"]


async def test_a_stopped_process_is_a_server_that_hangs(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """SIGSTOP: its port still takes connections, and nothing answers."""
    await cluster.apply_deployment(replace(TWO, replicas=1))
    (endpoint,) = await endpoints(cluster)
    await until(lambda: listens(endpoint))
    hangs, vllm = HangDetector(SystemClock(), 60), VllmServer()
    assert not hangs.idle_hangs("tiny", await look(cluster, vllm, "m-tiny"))
    os.killpg(os.getpgid(leader(tmp_path)), signal.SIGSTOP)
    silent = await look(cluster, vllm, "m-tiny")
    assert (silent.state, silent.silent) == (ServerState.STARTING, (endpoint,))
    found = [hangs.idle_hangs("tiny", silent) for _ in range(HANGS_AFTER)]
    assert found == [False] * (HANGS_AFTER - 1) + [True]
    await vllm.close()
    await cluster.delete("m-tiny")
    assert await cluster.list_deployments() == []


async def test_only_the_replica_that_died_is_started_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(TWO)
    first, second = (leader(tmp_path, replica=number) for number in (0, 1))
    await kill(tmp_path, 0)
    state = await seen(cluster)
    assert [one.phase for one in state.replicas] == [ReplicaPhase.EXITED, ReplicaPhase.RUNNING]
    assert (state.phase, state.endpoint) == (ReplicaPhase.RUNNING, state.replicas[1].endpoint)
    assert not state.is_settled
    assert state.problem == "1 of 2 replicas exited with status -9."
    await cluster.apply_deployment(TWO)
    assert leader(tmp_path, replica=0) != first
    assert leader(tmp_path, replica=1) == second
    assert (await endpoints(cluster))[1] == state.endpoint
    assert (await seen(cluster)).is_settled


async def test_when_all_have_died_it_has_exited(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.apply_deployment(TWO)
    for number in (0, 1):
        await kill(tmp_path, number)
    state = await seen(cluster)
    assert (state.phase, state.exit_code, state.problem) == (ReplicaPhase.EXITED, -9, None)


async def test_the_log_is_that_of_a_replica_that_died(cluster: LocalCluster) -> None:
    script = 'case "$PWD" in */1) echo no room; exit 3;; esac; echo fine; exec sleep 600'
    await cluster.apply_deployment(replace(shell("m-tiny", script), replicas=2))
    while (await seen(cluster)).is_settled:
        await asyncio.sleep(0.02)
    assert (await cluster.logs("m-tiny"))[0] == ["no room"]


async def test_more_or_fewer_replicas_leave_the_others_alone(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(scripted())
    first = leader(tmp_path)
    await cluster.apply_deployment(replace(scripted(), replicas=3))
    pids = [leader(tmp_path, replica=number) for number in range(3)]
    assert pids[0] == first
    before = await endpoints(cluster)
    await cluster.apply_deployment(TWO)
    assert await endpoints(cluster) == before[:2]
    assert (await seen(cluster)).is_settled
    await until(lambda: not is_live(pids[2]))
    assert is_live(pids[0])
    assert is_live(pids[1])
    await until(lambda: not (tmp_path / "cluster" / "m-tiny" / "2").exists())


async def test_a_replica_that_is_one_too_many_finishes_its_replies(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, drain_s=6) as cluster:
        slow = replace(scripted("m-tiny", "--token-delay-ms", "200"), replicas=2)
        await cluster.apply_deployment(slow)
        _, second = await endpoints(cluster)
        await until(lambda: listens(second))
        pid, server = leader(tmp_path, replica=1), VllmServer()
        reply = server.generate(second, Generation("m-tiny", "Hello", GenerationParams()))
        await anext(reply)
        await cluster.apply_deployment(replace(slow, replicas=1))
        assert second not in await endpoints(cluster)
        assert [chunk async for chunk in reply][-1].finish_reason == "stop"
        await server.close()
        await until(lambda: not is_live(pid))


async def test_a_new_replica_shares_no_folder_with_one_that_leaves(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, drain_s=1) as cluster:
        await cluster.apply_deployment(TWO)
        leaving = leader(tmp_path, replica=1)
        own = tmp_path / "cluster" / "m-tiny" / "1" / TEMPORARY_NAME
        temporary = own.readlink()
        await cluster.apply_deployment(scripted())
        await cluster.apply_deployment(TWO)
        assert temporary.is_dir(), "it still finishes its replies"
        third = tmp_path / "cluster" / "m-tiny" / "2" / TEMPORARY_NAME
        await until(lambda: not is_live(leaving))
        await until(lambda: not own.parent.exists())
        assert third.is_dir()
        await cluster.apply_deployment(replace(scripted(), replicas=3))
        assert is_live(leader(tmp_path, replica=1)), "its number is free again"
        assert len(set(await endpoints(cluster))) == 3


async def test_deleting_stops_also_what_was_to_finish_its_replies(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, drain_s=600) as cluster:
        await cluster.apply_deployment(TWO)
        pids = [leader(tmp_path, replica=number) for number in (0, 1)]
        await cluster.apply_deployment(scripted())
        await cluster.delete("m-tiny")
        assert not any(is_live(pid) for pid in pids)
        assert not (tmp_path / "cluster" / "m-tiny").exists()
        assert await cluster.observe("m-tiny") is None


async def test_another_spec_replaces_every_replica(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.apply_deployment(TWO)
    pids = [leader(tmp_path, replica=number) for number in (0, 1)]
    await cluster.apply_deployment(replace(scripted("m-tiny", "--name", "other"), replicas=2))
    assert not any(is_live(pid) for pid in pids)


async def test_a_replica_that_finds_no_port_leaves_the_others_running(tmp_path: Path) -> None:
    with (tmp_path / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = make_cluster(tmp_path, ports=(20_421, 20_422))
        await cluster.start()
        try:
            with pytest.raises(OSError, match="no free port"):
                await cluster.apply_deployment(replace(scripted(), replicas=3))
            assert len(set(await endpoints(cluster))) == 2
        finally:
            await cluster.close()


async def test_a_replica_that_hangs_is_stopped_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.apply_deployment(TWO)
    first, second = await endpoints(cluster)
    assert await cluster.stop_replica("m-tiny", second)
    assert [one.phase for one in (await seen(cluster)).replicas] == ["running", "exited"]
    assert is_live(leader(tmp_path, replica=0))
    assert not await cluster.stop_replica("m-other", first)
    assert is_live(leader(tmp_path, replica=0))


PLATFORM = """
    import asyncio, fcntl, sys
    from dataclasses import replace
    from pathlib import Path
    from tests.fixtures.local_cluster import make_cluster, scripted

    async def main(folder):
        lock = (folder / "platform.lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = make_cluster(folder, drain_s=600)
        await cluster.start()
        await cluster.apply_deployment(replace(scripted(), replicas=4))
        await cluster.apply_deployment(replace(scripted(), replicas=3))
        print("up", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(Path(sys.argv[1])))
"""


async def test_killed_platform_finds_all_its_replicas_again(
    tmp_path: Path,
) -> None:
    platform = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PLATFORM), str(tmp_path)],
        env={**os.environ, **IMPORTS},
        stdout=subprocess.PIPE,
    )
    assert platform.stdout is not None
    with platform:
        assert await asyncio.to_thread(platform.stdout.readline) == b"up\n"
        pids = [leader(tmp_path, replica=number) for number in range(3)]
        platform.kill()
    await kill(tmp_path, 1)
    async with running_cluster(tmp_path) as cluster:
        phases = [one.phase for one in (await seen(cluster)).replicas]
        assert phases == ["running", "exited", "running"]
        await cluster.apply_deployment(replace(scripted(), replicas=3))
        assert [leader(tmp_path, replica=number) for number in (0, 2)] == [pids[0], pids[2]]
        assert leader(tmp_path, replica=1) != pids[1]
        for endpoint in await endpoints(cluster):
            await until(lambda endpoint=endpoint: listens(endpoint))  # type: ignore[misc]
        assert len(marked(tmp_path)) == 3, "the fourth was to leave, and its time was up"
    assert marked(tmp_path) == []


def marked(folder: Path) -> list[int]:
    """The processes of this data folder that live."""
    instance, found = (folder / "cluster" / ".instance").read_text(), list[int]()
    for process in psutil.process_iter():
        try:
            marker = process.environ().get("GUANACO_PROCESS", "")
        except (psutil.Error, OSError):
            continue
        if marker.startswith(f"{instance}/") and is_live(process.pid):
            found.append(process.pid)
    return found
