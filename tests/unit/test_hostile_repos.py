"""The repos of `make bench-hostile`, without the platform: each that must be refused is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.errors import GuanacoError
from guanaco_server.artifacts.checking.checks import CheckLimits, check_repo
from guanaco_server.artifacts.hub.memory import MemoryHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.hostile_repos import GoodRepo, HostileRepo, hostile_repos

SEED = 12
LIMITS = CheckLimits(max_parameters=10**10, max_weight_bytes=10**11)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> GoodRepo:
    folder = tmp_path_factory.mktemp("good")
    make_tiny_repo(folder)
    return GoodRepo(folder)


@pytest.fixture
def canaries(tmp_path: Path) -> Iterator[Path]:
    """An empty folder that stays empty."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == [], "a repo's code ran"


@pytest.mark.parametrize("kind", ["headers", "configs", "indexes", "adapters", "code", "cards"])
async def test_a_hostile_repo_is_refused_before_its_weights_are_fetched(
    kind: str, good: GoodRepo, canaries: Path
) -> None:
    repos = hostile_repos(good, SEED, canaries, [kind])
    passed = [repo.name for repo in repos if await is_passed(good, repo) and repo.must_be_refused]
    assert repos
    assert passed == []


async def is_passed(good: GoodRepo, repo: HostileRepo) -> bool:
    """Check it. Anything but a sentence of ours is an error of the test."""
    base: dict[str, bytes | None] = {path.name: path.read_bytes() for path in good.folder.iterdir()}
    files = {name: data for name, data in (base | repo.files).items() if data is not None}
    hub = MemoryHub()
    hub.add_repo("acme/good", {name: data for name, data in base.items() if data is not None})
    hub.add_repo(f"evil/{repo.name}", files)
    try:
        await check_repo(hub, await hub.resolve(f"evil/{repo.name}", None), LIMITS)
    except GuanacoError:
        return False
    return True


def test_the_same_seed_makes_the_same_repos(good: GoodRepo, tmp_path: Path) -> None:
    one, other = (hostile_repos(good, SEED, tmp_path, ["indexes"]) for _ in range(2))
    assert one == other
