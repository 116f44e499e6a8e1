"""The local cluster with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil
import pytest

from guanaco.errors import ClusterRefused
from guanaco.submissions import GenerationParams
from guanaco_server.clusters.cluster import DeploymentSpec, JobSpec, ReplicaPhase, Resources
from guanaco_server.clusters.local import processes as local_processes
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.confinement import priority
from guanaco_server.deployments.model_servers.model_server import Generation, ServerLoad
from guanaco_server.deployments.model_servers.vllm import VllmServer
from tests.fixtures.local_cluster import (
    IMPORTS,
    is_live,
    leader,
    listens,
    make_cluster,
    scripted,
    shell,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[IO[str]]:
    """The lock of a platform that lives."""
    with (tmp_path / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@pytest.fixture
async def cluster(tmp_path: Path, lifeline: IO[str]) -> AsyncIterator[LocalCluster]:
    cluster = make_cluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.close()
    await until(lambda: not zombies())


def zombies() -> list[int]:
    """Children of ours that ended and that nobody has reaped."""
    children = psutil.Process().children()
    return [child.pid for child in children if is_zombie(child)]


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def exited(cluster: LocalCluster, name: str, within_s: float = 30) -> int | None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        state = await cluster.observe(name)
        if state and state.phase is ReplicaPhase.EXITED:
            return state.exit_code
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} still runs")


async def ignore(line: str) -> None:
    """Lines of a job that nobody reads."""


async def test_deployment_serves_at_its_address_and_reapplying_changes_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(scripted())
    state = await cluster.observe("m-tiny")
    assert state is not None
    await until(lambda: listens(state.endpoint))
    pid = leader(tmp_path)
    await cluster.apply_deployment(scripted())
    assert leader(tmp_path) == pid
    assert await cluster.list_deployments() == ["m-tiny"]


async def test_a_model_over_several_machines_is_refused_in_one_sentence(
    cluster: LocalCluster,
) -> None:
    with pytest.raises(ClusterRefused, match="is one machine, so a model cannot be served over 2"):
        await cluster.apply_deployment(replace(scripted(), resources=Resources(nodes=2)))
    assert await cluster.list_deployments() == []


async def test_another_spec_replaces_the_process(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.apply_deployment(scripted())
    first = leader(tmp_path)
    await cluster.apply_deployment(scripted("m-tiny", "--name", "other"))
    assert leader(tmp_path) != first
    assert not is_live(first)


async def test_secrets_reach_the_server_and_nothing_else(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    given = shell("m-tiny", "echo $TOKEN; sleep 600")
    await cluster.apply_deployment(replace(given, secrets={"TOKEN": "first"}))
    lines = await until(lambda: (tmp_path / "cluster" / "m-tiny" / "0" / "server.log").read_text())
    assert lines == "first\n"
    assert "first" not in (tmp_path / "cluster" / "m-tiny" / "0" / "replica.json").read_text()
    before = leader(tmp_path)
    await cluster.apply_deployment(replace(given, secrets={"TOKEN": "second"}))
    assert leader(tmp_path) == before


async def test_dead_server_shows_exit_status_and_log_and_restarts(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(shell("m-tiny", "echo no weights; echo here; exit 7"))
    assert await exited(cluster, "m-tiny") == 7
    lines, offset = await cluster.logs("m-tiny")
    assert lines == ["no weights", "here"]
    assert await cluster.logs("m-tiny", offset) == ([], offset)
    first = leader(tmp_path)
    await cluster.apply_deployment(shell("m-tiny", "echo no weights; echo here; exit 7"))
    assert leader(tmp_path) != first


async def test_a_deleted_server_is_gone_with_all_that_it_started(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(shell("m-tiny", "sleep 600 & sleep 600 & wait"))
    parent = psutil.Process(leader(tmp_path))
    children = await until(lambda: parent.children() if len(parent.children()) == 2 else [])
    await cluster.delete("m-tiny")
    await cluster.delete("m-tiny")
    assert not any(is_live(process.pid) for process in (parent, *children))
    assert await cluster.observe("m-tiny") is None
    assert not (tmp_path / "cluster" / "m-tiny").exists()


async def test_the_children_of_a_server_that_died_are_stopped(cluster: LocalCluster) -> None:
    await cluster.apply_deployment(shell("m-tiny", "sleep 600 & echo $!; exit 3"))
    assert await exited(cluster, "m-tiny") == 3
    lines, _ = await cluster.logs("m-tiny")
    assert not is_live(int(lines[0]))


async def test_a_server_that_ignores_sigterm_is_killed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_processes, "STOP_S", 0.3)
    await cluster.apply_deployment(
        shell("m-tiny", "trap '' TERM; echo $$; while :; do sleep 1; done")
    )
    lines: list[str] = []
    while not lines:
        lines, _ = await cluster.logs("m-tiny")
        await asyncio.sleep(0.02)
    await cluster.delete("m-tiny")
    assert not is_live(int(lines[0]))


async def test_no_port_is_given_twice(tmp_path: Path, lifeline: IO[str]) -> None:
    cluster = make_cluster(tmp_path, ports=(20_411, 20_412))
    await cluster.start()
    try:
        await cluster.apply_deployment(shell("m-a", "sleep 600"))
        await cluster.apply_deployment(shell("m-b", "sleep 600"))
        states = [await cluster.observe(name) for name in ("m-a", "m-b")]
        assert len({state.endpoint for state in states if state}) == 2
        with pytest.raises(OSError, match="no free port"):
            await cluster.apply_deployment(shell("m-c", "sleep 600"))
    finally:
        await cluster.close()


PLATFORM = """
    import asyncio, fcntl, sys
    from pathlib import Path
    from guanaco_server.clusters.cluster import DeploymentSpec, JobSpec
    from guanaco_server.clusters.local.cluster import LocalCluster

    async def main(folder):
        lock = (folder / "platform.lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = LocalCluster(folder / "cluster", folder / "platform.lock", 60, (21000, 29999), drain_s=0)
        await cluster.start()
        await cluster.apply_deployment(DeploymentSpec("m-tiny", tuple(sys.argv[2:]), {"PYTHONPATH": ":".join(sys.path)}))
        await cluster.apply_deployment(DeploymentSpec("m-lost", ("sleep", "600")))
        (folder / "cluster" / "m-lost" / "0" / "replica.json").unlink()
        async def on_line(line):
            print(line, flush=True)
        await cluster.run_job(JobSpec("s-job", ("sh", "-c", "sleep 600 & echo $!; wait")), on_line)

    asyncio.run(main(Path(sys.argv[1])))
"""


async def killed_platform(folder: Path, command: tuple[str, ...]) -> int:
    """Starts things, is killed, and returns the pid of its job's child."""
    platform = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PLATFORM), str(folder), *command],
        env={**os.environ, **IMPORTS},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert platform.stdout is not None
    with platform:
        job_child = int(await asyncio.to_thread(platform.stdout.readline))
        platform.kill()
    return job_child


async def test_after_a_kill_servers_are_found_and_all_else_killed(
    tmp_path: Path,
) -> None:
    spec = scripted()
    job_child = await killed_platform(tmp_path, spec.command)
    pid = leader(tmp_path)
    with (tmp_path / "platform.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = make_cluster(tmp_path)
        await cluster.start()
        try:
            state = await cluster.observe("m-tiny")
            assert state is not None
            assert state.phase is ReplicaPhase.RUNNING
            await until(lambda: listens(state.endpoint))
            assert await cluster.list_deployments() == ["m-tiny"]
            assert not is_live(job_child)
            assert not [
                process for process in psutil.process_iter() if marks(process, tmp_path, "m-lost")
            ]
            os.kill(pid, signal.SIGKILL)
            assert await exited(cluster, "m-tiny") is None
        finally:
            await cluster.close()


def marks(process: psutil.Process, folder: Path, name: str) -> bool:
    instance = (folder / "cluster" / ".instance").read_text()
    try:
        is_marked = process.environ().get("GUANACO_PROCESS") == f"{instance}/{name}"
        return is_marked and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


async def test_a_server_without_a_platform_ends_after_its_grace_period(
    tmp_path: Path, lifeline: IO[str]
) -> None:
    cluster = make_cluster(tmp_path, grace_s=0)
    await cluster.start()
    try:
        await cluster.apply_deployment(scripted())
        state = await cluster.observe("m-tiny")
        assert state is not None
        await until(lambda: listens(state.endpoint))
        fcntl.flock(lifeline, fcntl.LOCK_UN)
        assert await exited(cluster, "m-tiny") == -signal.SIGTERM
    finally:
        await cluster.close()


async def test_a_job_gives_its_lines_and_its_exit_status(cluster: LocalCluster) -> None:
    lines: list[str] = []

    async def on_line(line: str) -> None:
        lines.append(line)

    result = await cluster.run_job(
        JobSpec("s-job", ("sh", "-c", "echo one; echo two >&2; printf three; exit 4")), on_line
    )
    assert lines == ["one", "two", "three"]
    assert (result.exit_code, result.last_lines) == (4, ("one", "two", "three"))


async def test_a_process_sees_only_the_allowed_part_of_the_environment(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUANACO_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    lines: list[str] = []

    async def on_line(line: str) -> None:
        lines.append(line)

    await cluster.run_job(JobSpec("s-job", ("env",), {"HF_TOKEN": "hf_x"}), on_line)
    seen = dict(line.split("=", 1) for line in lines)
    assert seen["HF_TOKEN"] == "hf_x"
    assert seen["GUANACO_LIFELINE_GRACE_S"] == "0"
    assert seen["PATH"] == os.environ["PATH"]
    assert not {"GUANACO_DATABASE_URL", "HTTPS_PROXY"} & set(seen)


async def test_cancelling_a_job_stops_its_whole_tree(cluster: LocalCluster) -> None:
    pids: list[int] = []

    async def on_line(line: str) -> None:
        pids.append(int(line))

    job = asyncio.create_task(
        cluster.run_job(
            JobSpec("s-job", ("sh", "-c", "sleep 600 & echo $!; echo $$; wait")), on_line
        )
    )
    await until(lambda: len(pids) == 2)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not any(is_live(pid) for pid in pids)


async def test_job_that_leaves_a_child_behind_still_ends(cluster: LocalCluster) -> None:
    result = await cluster.run_job(JobSpec("s-job", ("sh", "-c", "sleep 600 & echo $!")), ignore)
    assert not is_live(int(result.last_lines[0]))


async def test_a_job_that_takes_too_long_is_stopped(cluster: LocalCluster) -> None:
    with pytest.raises(TimeoutError):
        await cluster.run_job(JobSpec("s-job", ("sleep", "600"), timeout_s=0.2), ignore)


async def test_a_job_of_the_same_name_stops_the_earlier_one(cluster: LocalCluster) -> None:
    pids: list[int] = []

    async def on_line(line: str) -> None:
        pids.append(int(line))

    earlier = asyncio.create_task(
        cluster.run_job(JobSpec("s-job", ("sh", "-c", "echo $$; exec sleep 600")), on_line)
    )
    await until(lambda: pids)
    result = await cluster.run_job(JobSpec("s-job", ("true",)), ignore)
    assert result.exit_code == 0
    assert not is_live(pids[0])
    with pytest.raises(asyncio.CancelledError):
        await earlier


async def test_an_error_of_the_reader_stops_the_job(cluster: LocalCluster) -> None:
    async def on_line(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="hello"):
        await cluster.run_job(JobSpec("s-job", ("sh", "-c", "echo hello; sleep 600")), on_line)


async def test_a_missing_program_is_named(cluster: LocalCluster) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await cluster.apply_deployment(DeploymentSpec("m-tiny", ("/no/python", "-m", "x")))
    assert caught.value.filename == "/no/python"
    with pytest.raises(FileNotFoundError):
        await cluster.run_job(JobSpec("s-job", ("/no/python",)), ignore)


async def test_a_server_says_how_many_requests_it_works_on(cluster: LocalCluster) -> None:
    await cluster.apply_deployment(scripted("m-tiny", "--token-delay-ms", "2000"))
    state = await cluster.observe("m-tiny")
    assert state is not None
    await until(lambda: listens(state.endpoint))
    server = VllmServer()
    assert await server.load(state.endpoint) == ServerLoad(0, 0, kv_cache_usage=0.25)
    replies = [
        server.generate(state.endpoint, Generation("m-tiny", "Hello", GenerationParams()))
        for _ in range(2)
    ]
    await asyncio.gather(*(anext(reply) for reply in replies))
    assert await server.load(state.endpoint) == ServerLoad(
        running=2, waiting=0, kv_cache_usage=0.25
    )
    for reply in replies:
        await reply.aclose()
    await server.close()


def niceness(pid: int) -> set[int]:
    """The nice values of a process group's threads."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == pid:
                found |= {
                    os.getpriority(os.PRIO_PROCESS, thread.id) for thread in process.threads()
                }
    return found


async def test_a_server_starts_behind_what_serves_until_it_is_ready(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    behind = min(priority.LOWEST, own + priority.LOWER_BY) if priority.may_raise() else own
    await cluster.apply_deployment(scripted())
    state = await cluster.observe("m-tiny")
    assert state is not None
    await until(lambda: listens(state.endpoint))
    assert niceness(leader(tmp_path)) == {behind}

    await cluster.note_ready("m-tiny", [state.endpoint])

    assert niceness(leader(tmp_path)) == {own}


async def test_a_job_runs_behind_what_serves(cluster: LocalCluster) -> None:
    said: list[str] = []

    async def hear(line: str) -> None:
        said.append(line)

    await cluster.run_job(JobSpec("job-nice", ("sh", "-c", "sleep 0.2; nice"), {}), hear)

    assert said == [str(min(priority.LOWEST, os.nice(0) + priority.LOWER_BY))]


def group_niceness(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text().split()[-1]


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel has no autogroups"
)
async def test_server_starts_at_lower_priority_than_other_sessions(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "has_groups", lambda: True)
    await cluster.apply_deployment(scripted())
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert group_niceness(leader(tmp_path)) == str(priority.LOWER_BY)

    await cluster.note_ready("m-tiny", [state.endpoint])

    assert group_niceness(leader(tmp_path)) == "0"
