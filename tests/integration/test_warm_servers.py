"""Model servers of this machine that are started before their model is known.

The interpreter here is a stand-in that waits as the real one does after its imports, and then is the scripted engine;
test_engine.py does it with vLLM.
"""

from __future__ import annotations

import fcntl
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase
from guanaco_server.clusters.local import warm
from guanaco_server.clusters.local.cluster import LocalCluster
from tests.fixtures.local_cluster import IMPORTS, PORTS, SCRIPTED, is_live, leader, listens, until

pytestmark = pytest.mark.slow

ENGINE = f"""\
    #!{sys.executable}
    import json, os, sys
    command = [sys.executable, {SCRIPTED!r}]
    if sys.argv[2] == "guanaco_server.engine.serve":
        os.execv(command[0], [*command, *sys.argv[3:]])
    assert sys.argv[2] == "guanaco_server.engine.warm"
    print("it imports", flush=True)
    if not os.read(0, 1):
        sys.exit()
    with os.fdopen(int(sys.argv[3]), "rb") as file:
        file.seek(0)
        order = json.loads(file.read())
    name, marker = order["marker"]
    os.execve(command[0], [*command, *order["arguments"]], {{**os.environ, **order["environment"], name: marker}})
"""


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[IO[str]]:
    """The lock of a platform that lives."""
    with (tmp_path / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def make_cluster(folder: Path, warm_servers: int = 1) -> LocalCluster:
    engine = folder / "engine"
    engine.write_text(textwrap.dedent(ENGINE))
    engine.chmod(0o755)
    return LocalCluster(
        folder / "cluster", folder / "platform.lock", 60, PORTS, 0,
        engine_python=engine, warm_servers=warm_servers,
    )  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path, lifeline: IO[str]) -> AsyncIterator[LocalCluster]:
    cluster = make_cluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.close()


def model_server(folder: Path, name: str = "m-tiny") -> DeploymentSpec:
    command = (str(folder / "engine"), "-m", "guanaco_server.engine.serve", "--port", "{port}")
    return DeploymentSpec(name, command, IMPORTS)


def waiting(folder: Path) -> list[psutil.Process]:
    """The processes of this platform that wait for their model."""
    live = [process for process in psutil.Process().children() if is_live(process.pid)]
    return [
        process
        for process in live
        if {str(folder / "engine"), "guanaco_server.engine.warm"} <= set(process.cmdline())
    ]


async def serves(cluster: LocalCluster, name: str) -> None:
    state = await cluster.observe(name)
    assert state is not None
    endpoint = state.endpoint
    assert endpoint is not None
    await until(lambda: listens(endpoint))


async def test_the_next_model_server_is_the_one_that_waits(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await cluster.expect_server()
    await cluster.expect_server()  # there is one already
    (process,) = waiting(tmp_path)
    temporary = process.cwd()

    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster, "m-tiny")
    assert leader(tmp_path) == process.pid
    assert waiting(tmp_path) == []
    lines, _ = await cluster.logs("m-tiny")
    assert lines[0] == "it imports", "its log begins with its process"
    await cluster.apply_deployment(model_server(tmp_path, "m-other"))  # nobody waits any more
    await serves(cluster, "m-other")

    later = make_cluster(tmp_path)
    await later.start()
    state = await later.observe("m-tiny")
    assert state is not None
    assert state.phase is ReplicaPhase.RUNNING, "a later platform finds it again"
    assert is_live(process.pid)
    await later.close()
    assert not Path(temporary).exists()


async def test_one_that_has_ended_is_no_loss(cluster: LocalCluster, tmp_path: Path) -> None:
    await cluster.expect_server()
    (process,) = waiting(tmp_path)
    temporary = Path(process.cwd())
    process.kill()
    await until(lambda: not is_live(process.pid))
    await cluster.apply_deployment(model_server(tmp_path))
    await serves(cluster, "m-tiny")
    assert not temporary.exists()


async def test_one_that_nobody_needs_ends(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "KEEP_S", 0.0)
    await cluster.expect_server()
    (process,) = waiting(tmp_path)
    temporary = Path(process.cwd())
    await until(lambda: not is_live(process.pid) and not temporary.exists())


async def test_none_outlives_its_platform(tmp_path: Path, lifeline: IO[str]) -> None:
    killed = make_cluster(tmp_path)
    await killed.start()
    await killed.expect_server()
    (process,) = waiting(tmp_path)
    temporary = Path(process.cwd())
    later = make_cluster(tmp_path)
    await later.start()
    await until(lambda: not is_live(process.pid) and not temporary.exists())
    await later.close()
    await killed.close()


async def test_where_there_is_no_room_none_is_made(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "MIN_AVAILABLE_BYTES", 1 << 60)
    await cluster.expect_server()
    assert waiting(tmp_path) == []
