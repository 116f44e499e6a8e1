"""One suite for every artifact store: in memory, in a folder, and on two S3 servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import pytest

from guanaco.errors import SerializerDied, StoreUnreachable
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest
from guanaco_server.serializer.task import JOURNAL_NAME, SerializerTask
from tests.fixtures.s3 import SERVERS, S3Server
from tests.fixtures.store_jobs import FILES, KEY, TENSORS, job, manifest, read, write

MAX_BYTES = 1_000_000
OTHER_KEY = "cd" * 32
REAL = ["local", *SERVERS]


class StoreUnderTest(ABC):
    """A store, and a serializer job that writes into it."""

    store: ArtifactStore

    @abstractmethod
    async def serialize(
        self,
        written: Manifest,
        files: Mapping[str, bytes] = FILES,
        tensors: bytes = TENSORS,
        key: str = KEY,
    ) -> None: ...


class Real(StoreUnderTest):
    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    async def serialize(
        self,
        written: Manifest,
        files: Mapping[str, bytes] = FILES,
        tensors: bytes = TENSORS,
        key: str = KEY,
    ) -> None:
        await write(await self.store.begin(job(key), MAX_BYTES), written, files, tensors)


class Memory(StoreUnderTest):
    def __init__(self) -> None:
        self.memory = self.store = MemoryStore()

    async def serialize(
        self,
        written: Manifest,
        files: Mapping[str, bytes] = FILES,
        tensors: bytes = TENSORS,
        key: str = KEY,
    ) -> None:
        await self.store.begin(job(key), MAX_BYTES)
        self.memory.stage(key, written, files)


def open_store(kind: str, request: pytest.FixtureRequest) -> StoreUnderTest:
    if kind == "memory":
        return Memory()
    if kind == "local":
        folder: Path = request.getfixturevalue("tmp_path")
        return Real(LocalStore(folder / "artifacts with space"))
    server: S3Server = request.getfixturevalue(kind)
    return Real(S3Store(server.bucket(prefix="some/folder")))


@pytest.fixture(params=["memory", *REAL])
def tested(request: pytest.FixtureRequest) -> StoreUnderTest:
    return open_store(request.param, request)


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> StoreUnderTest:
    """A store that files are really written into."""
    return open_store(request.param, request)


async def published(tested: StoreUnderTest) -> Manifest:
    await tested.serialize(manifest())
    return await tested.store.publish(KEY)


async def test_a_store_that_works_passes_its_own_check(tested: StoreUnderTest) -> None:
    await tested.store.check()
    await tested.store.check()
    assert await tested.store.list_keys() == []


async def test_an_empty_store_has_nothing_to_find_or_drop(tested: StoreUnderTest) -> None:
    assert await tested.store.list_keys() == []
    assert await tested.store.find(KEY) is None
    assert await tested.store.discard_stale(-5) == []
    await tested.store.discard(KEY)
    await tested.store.delete(KEY)


async def test_an_artifact_is_seen_only_once_it_is_published(tested: StoreUnderTest) -> None:
    await tested.serialize(manifest())
    assert await tested.store.find(KEY) is None
    assert await tested.store.list_keys() == []
    assert await tested.store.publish(KEY) == manifest()
    assert await tested.store.find(KEY) == manifest()
    assert await tested.store.list_keys() == [KEY]


async def test_a_small_file_of_a_published_artifact_can_be_read(tested: StoreUnderTest) -> None:
    await published(tested)
    assert await tested.store.read(KEY, "config.json") == FILES["config.json"]
    pieces = [piece async for piece in tested.store.pieces(KEY, "config.json")]
    assert b"".join(pieces) == FILES["config.json"]
    assert Manifest.model_validate_json(await tested.store.read(KEY, MANIFEST_NAME)) == manifest()


@pytest.mark.parametrize("path", ["missing.json", "../other", "/etc/passwd"])
async def test_only_an_artifacts_own_files_can_be_read(tested: StoreUnderTest, path: str) -> None:
    await published(tested)
    with pytest.raises(FileNotFoundError):
        await tested.store.read(KEY, path)
    with pytest.raises(FileNotFoundError):
        [piece async for piece in tested.store.pieces(KEY, path)]


async def test_nothing_can_be_read_of_what_is_not_published(tested: StoreUnderTest) -> None:
    await tested.serialize(manifest())
    with pytest.raises(FileNotFoundError):
        await tested.store.read(KEY, "config.json")
    assert await tested.store.access(KEY) == {}


async def test_publishing_twice_gives_the_same_artifact(tested: StoreUnderTest) -> None:
    assert await published(tested) == await tested.store.publish(KEY)


async def test_of_two_that_publish_the_first_stays(tested: StoreUnderTest) -> None:
    await published(tested)
    await tested.serialize(manifest(commit="d" * 40))
    assert await tested.store.publish(KEY) == manifest()


async def test_nothing_staged_cannot_be_published(tested: StoreUnderTest) -> None:
    await tested.store.begin(job(), MAX_BYTES)
    with pytest.raises(SerializerDied, match="no manifest"):
        await tested.store.publish(KEY)
    assert await tested.store.find(KEY) is None


async def test_beginning_again_keeps_what_an_earlier_attempt_left(tested: StoreUnderTest) -> None:
    await tested.serialize(manifest())
    await tested.store.begin(job(), MAX_BYTES)
    assert await tested.store.publish(KEY) == manifest()


async def test_discarding_drops_what_an_earlier_attempt_left(tested: StoreUnderTest) -> None:
    await tested.serialize(manifest())
    await tested.store.discard(KEY)
    await tested.store.begin(job(), MAX_BYTES)
    with pytest.raises(SerializerDied):
        await tested.store.publish(KEY)


async def test_discarding_keeps_what_was_published_and_may_be_repeated(
    tested: StoreUnderTest,
) -> None:
    await published(tested)
    await tested.store.begin(job(), MAX_BYTES)
    await tested.store.discard(KEY)
    await tested.store.discard(KEY)
    assert await tested.store.find(KEY) == manifest()
    assert await tested.store.read(KEY, "config.json") == FILES["config.json"]


async def test_only_what_nobody_writes_to_is_stale(tested: StoreUnderTest) -> None:
    await published(tested)
    await tested.serialize(manifest(OTHER_KEY), key=OTHER_KEY)
    assert await tested.store.discard_stale(3_600) == []
    assert await tested.store.discard_stale(-5) == [OTHER_KEY]
    assert await tested.store.discard_stale(-5) == []
    assert await tested.store.list_keys() == [KEY]
    with pytest.raises(SerializerDied):
        await tested.store.publish(OTHER_KEY)


async def test_a_deleted_artifact_is_gone_and_can_be_made_again(tested: StoreUnderTest) -> None:
    await published(tested)
    await tested.store.delete(KEY)
    await tested.store.delete(KEY)
    assert await tested.store.find(KEY) is None
    assert await tested.store.list_keys() == []
    assert await published(tested) == manifest()


async def test_whoever_has_access_reads_every_file_without_credentials(
    real: StoreUnderTest,
) -> None:
    await published(real)
    urls = await real.store.access(KEY)
    assert {path: await read(url) for path, url in urls.items()} == {
        **FILES,
        TENSORS_NAME: TENSORS,
        MANIFEST_NAME: manifest().model_dump_json().encode(),
    }


async def test_ticket_says_what_to_do_and_where_the_journal_is(real: StoreUnderTest) -> None:
    url = await real.store.begin(job(), MAX_BYTES)
    await write(url, manifest())
    ticket = SerializerTask.model_validate_json(
        await read(await real.store.begin(job(), MAX_BYTES))
    )
    assert ticket.model_dump(exclude={"upload"}) == job().model_dump()
    if ticket.upload.folder is None:
        assert await read(ticket.upload.get_urls[JOURNAL_NAME]) == b"{}"
    else:
        assert (Path(ticket.upload.folder) / JOURNAL_NAME).read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("files", "tensors", "named"),
    [
        pytest.param(
            {"config.json": FILES["config.json"]}, TENSORS, "tokenizer.json", id="missing"
        ),
        pytest.param({**FILES, "config.json": b"cut"}, TENSORS, "config.json", id="short-file"),
        pytest.param(FILES, b"cut", TENSORS_NAME, id="short-tensors"),
    ],
)
async def test_artifact_that_contradicts_its_manifest_is_not_published(
    real: StoreUnderTest, files: dict[str, bytes], tensors: bytes, named: str
) -> None:
    await real.serialize(manifest(), files, tensors)
    with pytest.raises(SerializerDied, match=named):
        await real.store.publish(KEY)
    assert await real.store.find(KEY) is None


async def test_the_artifact_of_another_key_is_not_published(real: StoreUnderTest) -> None:
    await real.serialize(manifest(OTHER_KEY))
    with pytest.raises(SerializerDied, match="another key"):
        await real.store.publish(KEY)


async def test_a_key_that_is_not_hexadecimal_reaches_nothing(real: StoreUnderTest) -> None:
    store = real.store
    for key in ("", "..", ".staging", "AB" * 32, "ab/cd", "ab" * 32 + "\n"):
        for call in (store.find, store.delete, store.discard, store.publish):
            with pytest.raises(ValueError, match="artifact key"):
                await call(key)
        with pytest.raises(ValueError, match="artifact key"):
            await store.begin(job(key), MAX_BYTES)


async def test_the_uri_of_a_local_artifact_is_its_folder(tmp_path: Path) -> None:
    tested = Real(LocalStore(tmp_path / "artifacts"))
    await published(tested)
    assert tested.store.uri(KEY) == (tmp_path / "artifacts" / KEY).as_uri()
    names = {path.name for path in (tmp_path / "artifacts" / KEY).iterdir()}
    assert names == {*FILES, TENSORS_NAME, MANIFEST_NAME}
    assert (await tested.store.free_bytes() or 0) > 0


async def test_unwritable_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnreachable, match="cannot be used"):
        await LocalStore(tmp_path / "file").check()


async def test_a_link_to_a_file_outside_is_not_published(tmp_path: Path) -> None:
    tested = Real(LocalStore(tmp_path / "artifacts"))
    await tested.serialize(manifest())
    (outside := tmp_path / "guanaco.db").write_bytes(FILES["config.json"])
    config = tmp_path / "artifacts" / ".staging" / KEY / "config.json"
    config.unlink()
    config.symlink_to(outside)
    with pytest.raises(SerializerDied, match=r"left 'config\.json', which is not a file"):
        await tested.store.publish(KEY)
