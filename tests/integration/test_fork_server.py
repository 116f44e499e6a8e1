"""Model servers of this machine that are forked from a process that has imported everything.

The interpreter here is a stand-in: it forks by the product's code, and what it forks is the scripted engine.
test_engine.py does it with vLLM.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil
import pytest

from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase, ReplicaState
from guanaco_server.clusters.local import fork_server
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.local.servers import ReplicaRecord, read_instance
from tests.fixtures.local_cluster import IMPORTS, PORTS, SCRIPTED, is_live, leader, listens, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODULE = "guanaco_server.engine.fork_server"
ENGINE = f"""\
    #!{sys.executable}
    import os, runpy, socket, sys, time
    from pathlib import Path
    sys.path[:0] = {[str(ROOT), str(ROOT / "server")]!r}
    is_fork_server = sys.argv[2] == {MODULE!r}
    place = Path(sys.argv[0]).parent
    if is_fork_server:
        from guanaco_server.engine import fork_server
        while (place / "imports").exists():
            time.sleep(0.02)
        if (place / "breaks").exists():
            sys.exit("it cannot be imported")
        control = socket.socket(fileno=int(sys.argv[3]))
        order = fork_server.ServerForker(control, fork_server._shown_environment()).serve_claims()
        if order is None:
            sys.exit()
        arguments = order["arguments"]
    else:
        arguments = sys.argv[3:]
    print("forked" if is_fork_server else "started", os.environ.get("SECRET"), flush=True)
    if "--fails" in arguments:
        sys.exit(3)
    sys.argv = [{SCRIPTED!r}, *arguments]
    runpy.run_path({SCRIPTED!r}, run_name="__main__")
"""


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[IO[str]]:
    """The lock of a platform that lives."""
    with (tmp_path / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def make_cluster(folder: Path) -> LocalCluster:
    engine = folder / "engine"
    engine.write_text(textwrap.dedent(ENGINE))
    engine.chmod(0o755)
    return LocalCluster(
        folder / "cluster", folder / "platform.lock", 60, PORTS, 0,
        engine_python=engine, has_fork_server=True,
    )  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path, lifeline: IO[str]) -> AsyncIterator[LocalCluster]:
    cluster = make_cluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.close()


def model_server(folder: Path, name: str = "m-tiny", *further: str) -> DeploymentSpec:
    command = (str(folder / "engine"), "-m", "guanaco_server.engine.serve", "--port", "{port}")
    return DeploymentSpec(name, (*command, *further), IMPORTS, {"SECRET": "s3cret"})


def nurseries(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if {str(folder / "engine"), MODULE} <= set(process.cmdline()) and is_live(process.pid):
                found.append(process)
    return found


def the_fork_server(folder: Path) -> psutil.Process:
    (process,) = nurseries(folder)
    return process


async def observed(cluster: LocalCluster, name: str = "m-tiny") -> ReplicaState:
    state = await cluster.observe(name)
    assert state is not None
    return state


async def serves(cluster: LocalCluster, name: str = "m-tiny") -> None:
    endpoint = (await observed(cluster, name)).endpoint
    assert endpoint is not None
    await until(lambda: listens(endpoint))


async def ended(cluster: LocalCluster, name: str = "m-tiny") -> ReplicaState:
    while (state := await observed(cluster, name)).phase is ReplicaPhase.RUNNING:
        await asyncio.sleep(0.02)
    return state


async def is_forked(cluster: LocalCluster, name: str = "m-tiny") -> bool:
    lines, _ = await cluster.logs(name)
    return lines[0] == "forked s3cret"


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_forked_server_looks_as_if_it_was_started(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.expect_server()
    process = the_fork_server(tmp_path)
    for name in ("m-tiny", "m-other"):
        await cluster.apply_deployment(model_server(tmp_path, name))
        await serves(cluster, name)
        assert await is_forked(cluster, name)
    instance = read_instance(tmp_path / "cluster")
    servers = [psutil.Process(leader(tmp_path, name)) for name in ("m-tiny", "m-other")]
    assert {server.ppid() for server in servers} == {process.pid}
    for server, name in zip(servers, ("m-tiny", "m-other"), strict=True):
        folder = tmp_path / "cluster" / name / "0"
        record = ReplicaRecord.read(folder)
        assert record is not None
        assert record.leader.carries(f"{instance}/{name}")
        assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid
        assert server.cmdline()[1:4] == ["-m", "guanaco_server.engine.serve", "--port"]
        assert server.cwd() == str(folder)
        assert b"s3cret" not in environment_of(server.pid), "only who started it knows its secrets"
        log = str(folder / "server.log")
        assert [server.pid] == [one.pid for one in record.leader.group()]
        files = [str(Path(f"/proc/{server.pid}/fd/{one}").readlink()) for one in range(3)]
        assert files == ["/dev/null", log, log]
        assert not _shared_sockets(server.pid, process.pid)

    later = make_cluster(tmp_path)
    await later.start()
    assert not is_live(process.pid), "a fork server ends with its platform"
    assert (await observed(later)).phase is ReplicaPhase.RUNNING, "its servers are found again"
    await later.close()
    await until(lambda: not any(is_live(server.pid) for server in servers))


def _shared_sockets(first: int, second: int) -> set[str]:
    def of(pid: int) -> set[str]:
        links = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
        return {link for link in links if link.startswith("socket:")}

    return of(first) & of(second)


async def test_servers_that_start_while_it_imports_wait_for_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "imports").touch()
    specs = [replace(model_server(tmp_path), replicas=2), model_server(tmp_path, "m-other")]
    starts = [asyncio.create_task(cluster.apply_deployment(spec)) for spec in specs]
    await until(lambda: nurseries(tmp_path))
    (tmp_path / "imports").unlink()
    await asyncio.gather(*starts)
    for name in ("m-tiny", "m-other"):
        await serves(cluster, name)
        assert await is_forked(cluster, name)
    assert len(nurseries(tmp_path)) == 1
    states = [*(await observed(cluster)).replicas, await observed(cluster, "m-other")]
    assert len({state.endpoint for state in states}) == 3


async def test_the_exit_status_of_a_forked_server_is_known(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(model_server(tmp_path, "m-tiny", "--fails"))
    assert (await ended(cluster)).exit_code == 3
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    os.kill(leader(tmp_path), 9)
    assert (await ended(cluster)).exit_code == -9


async def test_servers_outlive_a_fork_server_that_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    killed = the_fork_server(tmp_path)
    killed.kill()
    await until(lambda: not is_live(killed.pid))
    await serves(cluster)
    assert (await observed(cluster)).phase is ReplicaPhase.RUNNING
    os.kill(leader(tmp_path), 9)
    assert (await ended(cluster)).exit_code is None, "nobody was there to see it"
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    assert await is_forked(cluster), "there is another fork server"
    assert the_fork_server(tmp_path).pid != killed.pid


async def test_without_a_fork_server_the_command_starts_a_server(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks").touch()
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    assert not await is_forked(cluster)
    (tmp_path / "breaks").unlink()
    (tmp_path / "imports").touch()
    monkeypatch.setattr(fork_server, "CLAIM_S", 0.0)
    await cluster.apply_deployment(model_server(tmp_path, "m-other"))
    (tmp_path / "imports").unlink()
    await serves(cluster, "m-other")
    assert not await is_forked(cluster, "m-other"), "one that hangs is not waited for"
    process = the_fork_server(tmp_path)
    monkeypatch.undo()
    await cluster.apply_deployment(model_server(tmp_path, "m-third"))
    await serves(cluster, "m-third")
    await until(lambda: len(process.children()) == 1)


async def test_a_server_of_several_ranks_is_started_by_its_command(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    ranks = ("--tensor-parallel-size", "2")
    await cluster.apply_deployment(model_server(tmp_path, "m-ranks", *ranks))
    await serves(cluster, "m-ranks")
    assert await is_forked(cluster)
    assert not await is_forked(cluster, "m-ranks")


async def test_a_start_that_is_given_up_leaves_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "imports").touch()
    start = asyncio.create_task(cluster.apply_deployment(model_server(tmp_path)))
    await until(lambda: nurseries(tmp_path))
    start.cancel()
    with suppress(asyncio.CancelledError):
        await start
    (tmp_path / "imports").unlink()
    await cluster.apply_deployment(model_server(tmp_path, "m-other"))
    await serves(cluster, "m-other")
    process = the_fork_server(tmp_path)
    await until(lambda: [leader(tmp_path, "m-other")] == [one.pid for one in process.children()])
    await cluster.delete("m-tiny")


async def test_one_that_nobody_needs_ends_and_its_servers_stay(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster)
    process = the_fork_server(tmp_path)
    temporary = Path(process.cwd())
    monkeypatch.setattr(fork_server, "KEEP_S", 0.0)
    await cluster.expect_server()
    await until(lambda: not is_live(process.pid) and not temporary.exists())
    assert (await observed(cluster)).phase is ReplicaPhase.RUNNING
    await serves(cluster)


async def test_where_there_is_no_room_none_is_made(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "MIN_AVAILABLE_BYTES", 1 << 60)
    await cluster.expect_server()
    assert nurseries(tmp_path) == []


def test_a_container_has_no_more_room_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "CGROUP", tmp_path)
    monkeypatch.setattr(fork_server, "MIN_AVAILABLE_BYTES", 0)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("800000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 100000\n")
    assert fork_server.has_memory_left(300_000)
    assert not fork_server.has_memory_left(300_001)
    (tmp_path / "memory.max").write_text("max\n")
    assert fork_server.has_memory_left(300_001)


PLATFORM = """
import asyncio, fcntl, sys
from pathlib import Path
from tests.integration.test_fork_server import make_cluster, model_server
folder = Path(sys.argv[1])
async def main():
    with (folder / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = make_cluster(folder)
        await cluster.start()
        await cluster.apply_deployment(model_server(folder))
        (folder / "is-started").touch()
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_fork_server_ends_with_its_platform_and_servers_are_found(
    tmp_path: Path,
) -> None:
    platform = subprocess.Popen([sys.executable, "-c", PLATFORM, str(tmp_path)], cwd=ROOT)
    await until((tmp_path / "is-started").exists)
    await until(lambda: nurseries(tmp_path))  # a new process has its command line a moment later
    process, server = the_fork_server(tmp_path), leader(tmp_path)
    platform.kill()
    platform.wait()
    await until(lambda: not is_live(process.pid))
    assert is_live(server)
    later = make_cluster(tmp_path)
    with (tmp_path / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await later.start()
        await serves(later)
        assert leader(tmp_path) == server
        await later.close()
    await until(lambda: not is_live(server))
