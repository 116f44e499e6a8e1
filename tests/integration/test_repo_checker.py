"""Repos are checked in a process of their own, with the same verdicts, and it cannot be made to hold the platform up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from guanaco.errors import CorruptConfig, GuanacoError, HubUnreachable
from guanaco_server.artifacts.checking.checks import CheckedModel, CheckLimits, check_repo
from guanaco_server.artifacts.checking.process import RepoChecker
from guanaco_server.artifacts.hub.hub import RepoSnapshot
from guanaco_server.artifacts.hub.memory import MemoryHub
from guanaco_server.confinement.confined import Child
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.hostile_repos import GoodRepo, HostileRepo, hostile_repos
from tests.fixtures.repos import adapter_repo, base_repo

LIMITS = CheckLimits(max_parameters=10**10, max_weight_bytes=10**11)
KINDS = ("headers", "indexes", "adapters", "code")
CHILD = "guanaco_server.artifacts.checking.child"
EVERY = 6  # of the hostile repos one is compared; tests/unit/test_hostile_repos.py checks all

pytestmark = pytest.mark.slow


class CountingHub(MemoryHub):
    """Fails after ``left`` reads, or never answers."""

    left = 1_000_000
    hangs = False

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        self.left -= 1
        if self.left < 0 and self.hangs:
            await asyncio.Event().wait()
        if self.left < 0:
            raise HubUnreachable("The Hub answered 503.")
        return await super().read(snapshot, path, start, length)


@pytest.fixture
async def checker() -> AsyncIterator[RepoChecker]:
    checker = RepoChecker()
    yield checker
    await checker.close()


def children() -> list[psutil.Process]:
    """The checking processes of this test's process."""
    found = []
    for child in psutil.Process(os.getpid()).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if child.cmdline()[-2:] == ["-m", CHILD]:  # not one of the warm start, which imports it
                found.append(child)
    return found


async def verdict(checker: RepoChecker | None, hub: MemoryHub, repo: str) -> object:
    """Check it, here where there is no checker."""
    snapshot = await hub.resolve(repo, None)
    try:
        if checker is None:
            return await check_repo(hub, snapshot, LIMITS)
        return await checker.check(hub, snapshot, LIMITS)
    except GuanacoError as error:
        return error.to_wire()


async def test_the_process_comes_to_the_same_verdicts(checker: RepoChecker, tmp_path: Path) -> None:
    make_tiny_repo(tmp_path / "good")
    good = GoodRepo(tmp_path / "good")
    own = {path.name: path.read_bytes() for path in good.folder.iterdir()}
    hub = MemoryHub()
    hub.add_repo("acme/good", own)
    hub.add_repo("acme/base", base_repo())
    hub.add_repo("acme/adapter", adapter_repo())
    repos: list[HostileRepo] = hostile_repos(good, 12, tmp_path, KINDS)[::EVERY]
    for repo in repos:
        files = {name: data for name, data in (own | repo.files).items() if data is not None}
        hub.add_repo(f"evil/{repo.name}", files)
    names = ["acme/good", "acme/adapter", *(f"evil/{repo.name}" for repo in repos)]
    here = [await verdict(None, hub, name) for name in names]
    there = [await verdict(checker, hub, name) for name in names]
    assert there == here
    assert isinstance(there[0], CheckedModel)
    assert isinstance(there[1], CheckedModel)
    assert there[1].adapter is not None
    assert len(children()) == 1, "the process is kept for the next repo"


async def test_the_hubs_own_errors_come_through(checker: RepoChecker) -> None:
    hub = CountingHub()
    hub.add_repo("acme/base", base_repo())
    snapshot = await hub.resolve("acme/base", None)
    hub.left = 1
    with pytest.raises(HubUnreachable, match="503"):
        await checker.check(hub, snapshot, LIMITS)
    hub.left = 100
    assert (await checker.check(hub, snapshot, LIMITS)).tensor_count > 0


async def test_a_process_that_is_ended_fails_its_repo_only(checker: RepoChecker) -> None:
    hub = CountingHub()
    hub.add_repo("acme/base", base_repo())
    snapshot = await hub.resolve("acme/base", None)
    await checker.check(hub, snapshot, LIMITS)
    hub.left, hub.hangs = 1, True
    waiting = asyncio.create_task(checker.check(hub, snapshot, LIMITS))
    while hub.left >= 0:
        await asyncio.sleep(0.01)
    children()[0].kill()
    with pytest.raises(CorruptConfig, match="s of CPU time"):
        await waiting
    hub.left = 100
    assert (await checker.check(hub, snapshot, LIMITS)).tensor_count > 0


async def test_a_check_that_is_cancelled_leaves_no_process(checker: RepoChecker) -> None:
    hub = CountingHub()
    hub.add_repo("acme/base", base_repo())
    hub.left, hub.hangs = 0, True
    snapshot = await hub.resolve("acme/base", None)
    waiting = asyncio.create_task(checker.check(hub, snapshot, LIMITS))
    while hub.left >= 0:
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    while children():
        await asyncio.sleep(0.01)


async def test_too_long_a_file_list_starts_no_process() -> None:
    def refuse(module: str) -> Child:
        raise AssertionError(f"{module} is started")

    checker, hub = RepoChecker(refuse), MemoryHub()
    hub.add_repo("acme/base", base_repo())
    snapshot = await hub.resolve("acme/base", None)
    with pytest.raises(CorruptConfig, match="10,000 are allowed"):
        await checker.check(hub, replace(snapshot, files=snapshot.files * 10_000), LIMITS)


async def test_config_is_read_in_the_process_without_large_parts(
    checker: RepoChecker,
) -> None:
    config = {
        "vocab_size": 1_024,
        "quantization_config": {"quant_method": "awq", "bits": 4, "ignore": ["x"] * 10_000},
        "huge": 10**400,
        "long": "x" * 10_000,
        "deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}},
    }
    found = await checker.read_config("config.json", json.dumps(config).encode())
    assert found["vocab_size"] == 1_024
    assert found["quantization_config"] == {"quant_method": "awq", "bits": 4, "ignore": None}
    assert found["huge"] is found["long"] is None
    assert "g" not in json.dumps(found["deep"])


@pytest.mark.parametrize(
    "data", [b"[]", b"{", b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000]
)
async def test_a_config_that_is_no_object_is_a_corrupt_one(
    checker: RepoChecker, data: bytes
) -> None:
    with pytest.raises(CorruptConfig, match=r"config\.json"):
        await checker.read_config("config.json", data)
    assert len(children()) == 1, "the process goes on"
