from __future__ import annotations

import asyncio

import pytest

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    ReplicaPhase,
)
from guanaco_server.clusters.memory import JobScript, MemoryCluster


async def ignore(line: str) -> None:
    """Lines of a job that nobody reads."""


async def test_running_server_is_left_alone_and_a_dead_one_replaced() -> None:
    cluster = MemoryCluster()
    spec = DeploymentSpec("m-tiny", ("serve",))
    await cluster.apply_deployment(spec)
    await cluster.apply_deployment(spec)
    assert cluster.starts == ["m-tiny"]
    cluster.die("m-tiny", 9, ["ERROR out of memory"])
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert (state.phase, state.exit_code) == (ReplicaPhase.EXITED, 9)
    assert await cluster.logs("m-tiny") == (["ERROR out of memory"], 1)
    await cluster.apply_deployment(spec)
    assert cluster.starts == ["m-tiny", "m-tiny"]
    await cluster.delete("m-tiny")
    assert await cluster.observe("m-tiny") is None


async def test_a_job_does_what_its_script_says() -> None:
    done: list[str] = []

    async def works(spec: JobSpec) -> None:
        done.append(spec.name)

    async def on_line(line: str) -> None:
        done.append(line)

    cluster = MemoryCluster(JobScript(["halfway"], exit_code=2, works=works))
    result = await cluster.run_job(JobSpec("s-job", ("serialize",)), on_line)
    assert result == JobResult(2, ("halfway",))
    assert done == ["s-job", "halfway"]


async def test_a_job_that_takes_too_long_times_out() -> None:
    async def works(spec: JobSpec) -> None:
        await asyncio.Event().wait()

    cluster = MemoryCluster(JobScript(works=works))
    with pytest.raises(TimeoutError):
        await cluster.run_job(JobSpec("s-job", ("serialize",), timeout_s=0.01), ignore)
