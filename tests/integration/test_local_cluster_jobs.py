"""The local cluster runs jobs."""

from __future__ import annotations

import asyncio
import os

import pytest

from guanaco_server.deployments.clusters.cluster import DeploymentSpec, JobSpec
from guanaco_server.deployments.clusters.local import LocalCluster
from tests.fixtures.local_cluster import (
    cluster,
    ignore,
    is_live,
    lifeline,
    until,
)

__all__ = ["cluster", "lifeline"]


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


async def test_a_job_that_leaves_a_child_behind_ends_all_the_same(cluster: LocalCluster) -> None:
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
