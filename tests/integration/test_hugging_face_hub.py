"""The real huggingface_hub against a Hub on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco import errors
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.demo.hub_server import LocalHub, commit_of
from tests.fixtures.hub import ControlledHub


class FailingHub(LocalHub):
    def before_answer(self, path: str) -> int | None:
        return 500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("good", "gated"):
        (tmp_path / "acme" / name).mkdir(parents=True)
        (tmp_path / "acme" / name / "config.json").write_text('{"a": 1}')
    (tmp_path / "acme" / "gated" / ".gated").touch()
    return tmp_path


@pytest.fixture
def hub(root: Path) -> Iterator[HuggingFaceHub]:
    with ControlledHub(root) as server:
        yield HuggingFaceHub(server.url, None, 5)


async def test_a_repo_is_pinned_to_its_commit_with_its_files(
    hub: HuggingFaceHub, root: Path
) -> None:
    snapshot = await hub.resolve("acme/good", None)
    assert snapshot.commit == commit_of(root / "acme" / "good")
    assert [(file.path, file.size_bytes) for file in snapshot.files] == [("config.json", 8)]
    assert await hub.resolve("acme/good", snapshot.commit) == snapshot


async def test_a_range_is_read_and_nothing_behind_the_end(hub: HuggingFaceHub) -> None:
    snapshot = await hub.resolve("acme/good", "main")
    assert await hub.read(snapshot, "config.json", 0, 100) == b'{"a": 1}'
    assert await hub.read(snapshot, "config.json", 2, 3) == b'a":'
    assert await hub.read(snapshot, "config.json", 8, 5) == b""


@pytest.mark.parametrize(
    ("repo", "revision", "kind"),
    [
        ("acme/none", None, errors.RepoNotFound),
        ("acme/gated", None, errors.RepoGated),
        ("acme/good", "gone", errors.RevisionNotFound),
    ],
)
async def test_what_cannot_be_had_is_told_apart(
    hub: HuggingFaceHub, repo: str, revision: str | None, kind: type[errors.GuanacoError]
) -> None:
    with pytest.raises(kind, match=repo):
        await hub.resolve(repo, revision)


async def test_a_failing_hub_is_worth_another_try(root: Path) -> None:
    with FailingHub(root) as server, pytest.raises(errors.HubUnreachable, match="500") as failed:
        await HuggingFaceHub(server.url, None, 5).resolve("acme/good", None)
    assert failed.value.is_retryable
    assert failed.value.blame is errors.Blame.CHANCE


async def test_a_hub_that_is_not_there_is_worth_another_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.HubUnreachable, match="does not answer"):
        await HuggingFaceHub(f"http://127.0.0.1:{port}", None, 2).resolve("acme/good", None)
