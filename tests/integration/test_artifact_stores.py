"""One suite for every artifact store."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from guanaco.errors import SerializerDied
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.artifacts.stores.store import (
    MANIFEST_NAME,
    TENSORS_NAME,
    ArtifactStore,
    Manifest,
    StoredFile,
)

KEY = "ab" * 32
FILES = {"config.json": b'{"model_type": "llama"}', TENSORS_NAME: b"tensors" * 100}


def manifest(key: str = KEY, files: dict[str, bytes] = FILES, commit: str = "c" * 40) -> Manifest:
    return Manifest(
        key=key,
        repo="org/tiny",
        commit=commit,
        tensor_count=2,
        files=tuple(
            StoredFile(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for path, data in files.items()
        ),
        tool_versions={"tensorizer": "2.12.0"},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


class StoreUnderTest(ABC):
    """A store, and a serializer job that writes into it."""

    store: ArtifactStore

    @abstractmethod
    async def serialize(
        self, uri: str, written: Manifest, files: dict[str, bytes] = FILES
    ) -> None: ...


class Local(StoreUnderTest):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(root)

    async def serialize(self, uri: str, written: Manifest, files: dict[str, bytes] = FILES) -> None:
        staging = Path(unquote(urlsplit(uri).path))
        for path, data in files.items():
            (staging / path).write_bytes(data)
        (staging / MANIFEST_NAME).write_text(written.model_dump_json())


class Memory(StoreUnderTest):
    def __init__(self) -> None:
        self.memory = self.store = MemoryStore()

    async def serialize(self, uri: str, written: Manifest, files: dict[str, bytes] = FILES) -> None:
        self.memory.stage(uri.rpartition("/")[2], written, files)


@pytest.fixture(params=["memory", "local"])
def tested(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    return Local(tmp_path / "artifacts with space") if request.param == "local" else Memory()


async def published(tested: StoreUnderTest) -> Manifest:
    await tested.serialize(await tested.store.begin(KEY), manifest())
    return await tested.store.publish(KEY)


async def test_an_artifact_is_seen_only_once_it_is_published(tested: StoreUnderTest) -> None:
    await tested.serialize(await tested.store.begin(KEY), manifest())
    assert await tested.store.find(KEY) is None
    assert await tested.store.publish(KEY) == manifest()
    assert await tested.store.find(KEY) == manifest()


async def test_a_small_file_of_a_published_artifact_can_be_read(tested: StoreUnderTest) -> None:
    await published(tested)
    assert await tested.store.read(KEY, "config.json") == FILES["config.json"]
    assert Manifest.model_validate_json(await tested.store.read(KEY, MANIFEST_NAME)) == manifest()


@pytest.mark.parametrize("path", ["missing.json", "../other", "/etc/passwd"])
async def test_only_an_artifacts_own_files_can_be_read(tested: StoreUnderTest, path: str) -> None:
    await published(tested)
    with pytest.raises(FileNotFoundError):
        await tested.store.read(KEY, path)


async def test_publishing_twice_gives_the_same_artifact(tested: StoreUnderTest) -> None:
    assert await published(tested) == await tested.store.publish(KEY)


async def test_of_two_that_publish_the_first_stays(tested: StoreUnderTest) -> None:
    await published(tested)
    await tested.serialize(await tested.store.begin(KEY), manifest(commit="d" * 40))
    assert await tested.store.publish(KEY) == manifest()


async def test_nothing_staged_cannot_be_published(tested: StoreUnderTest) -> None:
    await tested.store.begin(KEY)
    with pytest.raises(SerializerDied, match="no manifest"):
        await tested.store.publish(KEY)
    assert await tested.store.find(KEY) is None


async def test_beginning_again_drops_what_an_earlier_attempt_left(tested: StoreUnderTest) -> None:
    await tested.serialize(await tested.store.begin(KEY), manifest())
    await tested.store.begin(KEY)
    with pytest.raises(SerializerDied):
        await tested.store.publish(KEY)


async def test_discarding_keeps_what_was_published_and_may_be_repeated(
    tested: StoreUnderTest,
) -> None:
    await published(tested)
    await tested.store.begin(KEY)
    await tested.store.discard(KEY)
    await tested.store.discard(KEY)
    assert await tested.store.find(KEY) == manifest()


async def test_a_deleted_artifact_is_gone_and_can_be_made_again(tested: StoreUnderTest) -> None:
    await published(tested)
    await tested.store.delete(KEY)
    await tested.store.delete(KEY)
    assert await tested.store.find(KEY) is None
    assert await published(tested) == manifest()


async def test_the_uri_of_a_local_artifact_is_its_folder(tmp_path: Path) -> None:
    tested = Local(tmp_path / "artifacts")
    await published(tested)
    assert tested.store.uri(KEY) == (tmp_path / "artifacts" / KEY).as_uri()
    assert {path.name for path in (tmp_path / "artifacts" / KEY).iterdir()} == {
        *FILES,
        MANIFEST_NAME,
    }
    assert (await tested.store.free_bytes() or 0) > 0


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"config.json": FILES["config.json"]}, id="missing-file"),
        pytest.param({**FILES, TENSORS_NAME: b"cut"}, id="short-file"),
    ],
)
async def test_an_artifact_that_is_not_as_its_manifest_says_is_not_published(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    tested = Local(tmp_path)
    await tested.serialize(await tested.store.begin(KEY), manifest(), files)
    with pytest.raises(SerializerDied, match=TENSORS_NAME):
        await tested.store.publish(KEY)


async def test_the_artifact_of_another_key_is_not_published(tmp_path: Path) -> None:
    tested = Local(tmp_path)
    await tested.serialize(await tested.store.begin(KEY), manifest(key="cd" * 32))
    with pytest.raises(SerializerDied, match="another key"):
        await tested.store.publish(KEY)


@pytest.mark.parametrize("key", ["", "..", ".staging", "AB" * 32, "ab/cd", "ab" * 32 + "\n"])
async def test_a_key_that_is_not_hexadecimal_reaches_no_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="artifact key"):
        await LocalStore(tmp_path).begin(key)
