"""The node's cache of artifacts: filled once, whole or not at all, and the least recently used go first."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco_server.confinement import landlock
from guanaco_server.engine.artifacts.errors import DamagedArtifactError
from guanaco_server.engine.artifacts.local_tensors import Selection
from guanaco_server.engine.artifacts.node_cache import (
    LOCKS_NAME,
    PART_NAME,
    USED_NAME,
    NodeCache,
    read_copy,
    read_through_cache,
)
from guanaco_server.engine.artifacts.source import ArtifactSource, model_folder, read_manifest
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest
from tests.fixtures.artifacts import HttpStore, flip_byte, random_tensors, write_artifact
from tests.fixtures.up import eventually

pytestmark = pytest.mark.slow

MIB = 1024**2
TENSORS = random_tensors(3 * MIB, 100, 2 * MIB)
BYTES = {tensor.name: tensor.data for tensor in TENSORS}
ROOM = 11 * MIB  # for two such artifacts
FIRST, SECOND, THIRD = ("ab" * 32, "cd" * 32, "ef" * 32)

READER = """
import sys
from pathlib import Path
from guanaco_server.engine.artifacts.source import ArtifactSource, model_folder, read_manifest
from guanaco_server.engine.artifacts.node_cache import read_through_cache
from guanaco_server.engine.artifacts.node_cache import NodeCache
source = ArtifactSource(sys.argv[1])
with model_folder(source, NodeCache(Path(sys.argv[2]), 11 * 1024**2)) as found:
    print(found.is_cached, flush=True)
    manifest = read_manifest(found.path)
    for record, view in read_through_cache(source.url("model.tensors"), manifest, found.path):
        print(record.name, len(view), flush=True)
"""

OWN_USER = """
import os
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.profiles import confine_program, ports_of
from guanaco_server.confinement.sockets import Sockets
cache, own = Path(sys.argv[2]), Path(sys.argv[3])
access = Access(writes=(cache, own), connects=ports_of(sys.argv[1]))
confine_program(access, Sockets(), owned=(own,), shared=(cache,))
assert os.geteuid() > 60_000
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HttpStore]:
    for key in (FIRST, SECOND, THIRD):
        write_artifact(tmp_path / "store" / key, TENSORS, key=key)
    with HttpStore(tmp_path / "store") as store:
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(
    store: HttpStore, folder: Path, key: str = FIRST, selection: Selection | None = None
) -> tuple[dict[str, bytes], bool]:
    """Load as a model server does, and return whether the cache was used too."""
    source = ArtifactSource(store.uri(key))
    with model_folder(source, NodeCache(folder, ROOM)) as found:
        manifest = read_manifest(found.path)
        if not found.is_cached:
            return {}, False
        tensors = read_through_cache(
            source.url(TENSORS_NAME), manifest, found.path, selection or Selection()
        )
        return {record.name: bytes(view) for record, view in tensors}, True


def whole(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob(f"*/{TENSORS_NAME}")}


def test_the_second_start_asks_the_store_for_nothing(store: HttpStore, folder: Path) -> None:
    assert load(store, folder) == (BYTES, True)
    asked = len(store.asked)
    assert load(store, folder) == (BYTES, True)
    assert len(store.asked) == asked
    copy = (folder / FIRST / TENSORS_NAME).read_bytes()
    assert copy == (store.root / FIRST / TENSORS_NAME).read_bytes()


def test_a_rank_that_wants_little_fills_all_of_it(store: HttpStore, folder: Path) -> None:
    few = Selection(is_wanted=lambda name: name == TENSORS[1].name)
    assert load(store, folder, selection=few) == ({TENSORS[1].name: TENSORS[1].data}, True)
    assert load(store, folder) == (BYTES, True)


def test_the_least_recently_used_artifact_goes(store: HttpStore, folder: Path) -> None:
    load(store, folder, FIRST)
    load(store, folder, SECOND)
    used_ago(folder / FIRST, 100)
    used_ago(folder / SECOND, 200)
    load(store, folder, THIRD)
    assert whole(folder) == {FIRST, THIRD}
    used_ago(folder / THIRD, 50)
    load(store, folder, FIRST)
    load(store, folder, SECOND)
    assert whole(folder) == {FIRST, SECOND}


def used_ago(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder / USED_NAME, (then, then))


def test_an_artifact_in_use_stays(store: HttpStore, folder: Path) -> None:
    load(store, folder, FIRST)
    load(store, folder, SECOND)
    used_ago(folder / FIRST, 100)
    with model_folder(ArtifactSource(store.uri(FIRST)), NodeCache(folder, ROOM)):
        used_ago(folder / FIRST, 100)
        load(store, folder, THIRD)
        assert whole(folder) == {FIRST, THIRD}


def test_a_fork_keeps_no_artifact_that_was_given_up(store: HttpStore, folder: Path) -> None:
    """vLLM's engine is forked while the first artifact is held, and has all that was open then."""
    load(store, folder, FIRST)
    load(store, folder, SECOND)
    with model_folder(ArtifactSource(store.uri(FIRST)), NodeCache(folder, ROOM)):
        used_ago(folder / FIRST, 100)
        forked = [os.dup(number) for number in locks_of(FIRST)]
        assert forked
    load(store, folder, THIRD)
    assert whole(folder) == {SECOND, THIRD}
    for number in forked:
        os.close(number)


def locks_of(key: str) -> list[int]:
    """The descriptors of this process's locks on an artifact."""
    return [
        int(path.name)
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink() and str(path.readlink()).endswith(f"/.locks/{key}")
    ]


def test_all_in_use_or_too_large_streams_and_says_so(
    store: HttpStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = NodeCache(folder, MIB)
    with model_folder(ArtifactSource(store.uri()), small) as found:
        assert not found.is_cached
        assert read_manifest(found.path).key == FIRST
    assert "more than the cache may have" in caplog.text
    cache = NodeCache(folder, ROOM)
    with (
        model_folder(ArtifactSource(store.uri(FIRST)), cache),
        model_folder(ArtifactSource(store.uri(SECOND)), cache),
    ):
        assert load(store, folder, THIRD) == ({}, False)
    assert "are in use" in caplog.text


def test_a_full_disk_streams_and_says_so(
    store: HttpStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "pwrite", full)
    assert load(store, folder) == (BYTES, True)
    assert whole(folder) == set()
    assert not (folder / FIRST / PART_NAME).exists()
    assert caplog.text.count("No space left") == 1


def test_a_damaged_copy_is_removed_and_fetched_again(store: HttpStore, folder: Path) -> None:
    load(store, folder)
    manifest = read_manifest(folder / FIRST)
    flip_byte(folder / FIRST / TENSORS_NAME, manifest.tensors[2].offset)
    with pytest.raises(DamagedArtifactError, match="next start fetches it again"):
        list(read_copy(folder / FIRST / TENSORS_NAME, manifest))
    assert load(store, folder) == (BYTES, True)


def test_a_damaged_stream_leaves_no_copy(store: HttpStore, folder: Path) -> None:
    manifest = Manifest.model_validate_json((store.root / FIRST / MANIFEST_NAME).read_bytes())
    flip_byte(store.root / FIRST / TENSORS_NAME, manifest.tensors[2].offset)
    with pytest.raises(DamagedArtifactError):
        load(store, folder)
    assert whole(folder) == set()
    assert not (folder / FIRST / PART_NAME).exists()


def test_a_damaged_small_file_is_fetched_again(store: HttpStore, folder: Path) -> None:
    load(store, folder)
    (folder / FIRST / "tokenizer.json").write_bytes(b"[]")
    asked = len(store.asked)
    assert load(store, folder) == (BYTES, True)
    assert TENSORS_NAME not in {ask.path for ask in store.asked[asked:]}


def reader(
    store: HttpStore, folder: Path, key: str = FIRST, own: Path | None = None
) -> subprocess.Popen[str]:
    """With a folder of its ``own`` it is confined, and a user of its own, as a model server that root starts."""
    code = READER
    if own is not None:
        own.mkdir()
        code = READER.replace("source = ", f"{OWN_USER}source = ", 1)
    return subprocess.Popen(
        [sys.executable, "-c", code, store.uri(key), str(folder), str(own)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "TMPDIR": str(own or folder.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_start_at_once_fetch_once(store: HttpStore, folder: Path) -> None:
    store.pause_s = 0.005
    readers = [reader(store, folder) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].splitlines() for process in readers]
    expected = ["True", *(f"{tensor.name} {len(tensor.data)}" for tensor in TENSORS)]
    assert said == [expected] * 3
    fetched = [ask for ask in store.asked if ask.path == TENSORS_NAME]
    size = (store.root / FIRST / TENSORS_NAME).stat().st_size
    assert sum(ask.end - ask.start for ask in fetched) == size


@pytest.mark.skipif(
    os.geteuid() != 0 or not landlock.version(),
    reason="Only root gives a server a user of its own.",
)
def test_servers_with_users_of_their_own_share_the_cache(
    store: HttpStore, folder: Path, tmp_path: Path
) -> None:
    """The first copy is one of the version before, which root has made."""
    load(store, folder, FIRST)
    expected = ["True", *(f"{tensor.name} {len(tensor.data)}" for tensor in TENSORS)]

    def load_as(user: int, key: str) -> None:
        said, _ = reader(store, folder, key, tmp_path / f"own{user}").communicate(timeout=60)
        assert said.splitlines() == expected

    load_as(1, SECOND)
    assert whole(folder) == {FIRST, SECOND}
    used_ago(folder / FIRST, 200)
    used_ago(folder / SECOND, 100)
    load_as(2, FIRST)  # which says that it was used
    load_as(3, THIRD)
    assert whole(folder) == {FIRST, THIRD}
    used_ago(folder / FIRST, 100)
    load_as(4, SECOND)
    assert whole(folder) == {SECOND, THIRD}
    used_ago(folder / SECOND, 100)
    load(store, folder, FIRST)  # as root again: one of the version before serves on
    (folder / LOCKS_NAME / FIRST).chmod(0o600)
    load_as(5, FIRST)
    assert whole(folder) == {FIRST, THIRD}
    used_ago(folder / FIRST, 200)
    load_as(6, SECOND)
    assert whole(folder) == {SECOND, THIRD}


def test_a_killed_fill_looks_like_nothing_and_is_done_again(store: HttpStore, folder: Path) -> None:
    store.pause_s = 0.2
    process = reader(store, folder)
    part = folder / FIRST / PART_NAME
    eventually(lambda: part.exists() and part.stat().st_size > 0, "fill that has begun")
    process.kill()
    process.communicate()
    store.pause_s = 0.0
    assert whole(folder) == set()
    assert part.exists()
    assert load(store, folder) == (BYTES, True)
    assert not part.exists()


def test_what_a_killed_fill_left_makes_room_for_others(store: HttpStore, folder: Path) -> None:
    load(store, folder, SECOND)
    with model_folder(ArtifactSource(store.uri(FIRST)), NodeCache(folder, ROOM)):
        (folder / FIRST / PART_NAME).write_bytes(b"x")
    load(store, folder, THIRD)
    assert whole(folder) == {SECOND, THIRD}
    assert not (folder / FIRST).exists()


def test_a_cache_that_cannot_be_written_streams(
    store: HttpStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with (
        caplog.at_level(logging.WARNING),
        model_folder(
            ArtifactSource(store.uri()), NodeCache.usable(tmp_path / "file", ROOM)
        ) as found,
    ):
        assert not found.is_cached
    assert "Nothing is cached" in caplog.text
