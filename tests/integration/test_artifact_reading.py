"""The engine's readers, without vLLM: local files, ranged HTTP, and what each does with damage."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

from guanaco_server.engine.artifacts import ranged_http
from guanaco_server.engine.artifacts.errors import DamagedArtifactError, UnreachableArtifactError
from guanaco_server.engine.artifacts.local_tensors import Selection, read_local
from guanaco_server.engine.artifacts.remote_tensors import BufferPool, plan, read_remote
from guanaco_server.engine.artifacts.source import (
    ArtifactSource,
    model_folder,
    parse_manifest,
    read_manifest,
)
from guanaco_server.formats.manifest import MANIFEST_NAME, PIECE_BYTES, TENSORS_NAME, Manifest
from guanaco_server.submissions.pipeline.server_start import evidence
from tests.fixtures.artifacts import (
    KEY,
    SMALL_FILES,
    Ask,
    Fault,
    HttpStore,
    flip_byte,
    random_tensors,
    write_artifact,
)

MIB = 1024**2
TENSORS = random_tensors(10, 0, 5 * MIB, PIECE_BYTES + 3 * MIB, 1_000, 2 * PIECE_BYTES, 3)
BYTES = {tensor.name: tensor.data for tensor in TENSORS}
LARGE = TENSORS[3].name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """An artifact to copy: its hashes take longer than most of the tests."""
    folder = tmp_path_factory.mktemp("written") / KEY
    return folder, write_artifact(folder, TENSORS)


@pytest.fixture
def manifest(written: tuple[Path, Manifest], tmp_path: Path) -> Manifest:
    folder, manifest = written
    shutil.copytree(folder, tmp_path / KEY)
    return manifest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / KEY / TENSORS_NAME


def url(store: HttpStore) -> str:
    return f"{store.uri()}/{TENSORS_NAME}?signature=secret"


def offset(manifest: Manifest, name: str) -> int:
    return next(record.offset for record in manifest.tensors if record.name == name)


def test_a_file_gives_every_tensor_in_order(manifest: Manifest, path: Path) -> None:
    got = [(record.name, bytes(view)) for record, view in read_local(path, manifest, ahead_bytes=1)]
    assert got == [(tensor.name, tensor.data) for tensor in TENSORS]


@pytest.mark.parametrize("place", [0, PIECE_BYTES + 5])
def test_a_flipped_byte_in_a_file_names_its_tensor(
    manifest: Manifest, path: Path, place: int
) -> None:
    flip_byte(path, offset(manifest, LARGE) + place)
    seen = []
    with pytest.raises(DamagedArtifactError, match=LARGE):
        seen.extend(record.name for record, _ in read_local(path, manifest))
    assert LARGE not in seen


def test_a_truncated_file_is_damaged(manifest: Manifest, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedArtifactError, match="bytes"):
        list(read_local(path, manifest))


def test_ranks_together_verify_every_byte_once(manifest: Manifest, path: Path) -> None:
    for record in manifest.tensors:
        for start, _, _ in record.pieces():
            flip_byte(path, record.offset + start)
            refused = [
                is_refused(path, manifest, Selection(rank=rank, ranks=3)) for rank in range(3)
            ]
            flip_byte(path, record.offset + start)
            assert sum(refused) == 1


def is_refused(path: Path, manifest: Manifest, selection: Selection) -> bool:
    try:
        list(read_local(path, manifest, selection))
    except DamagedArtifactError:
        return True
    return False


def test_what_is_not_wanted_is_neither_read_nor_verified(manifest: Manifest, path: Path) -> None:
    flip_byte(path, offset(manifest, LARGE))
    wanted = Selection(is_wanted=lambda name: name != LARGE)
    assert {record.name for record, _ in read_local(path, manifest, wanted)} == BYTES.keys() - {
        LARGE
    }
    with HttpStore(path.parents[1]) as store:
        names = {record.name for record, _ in read_remote(url(store), manifest, wanted)}
    assert names == BYTES.keys() - {LARGE}
    assert sum(ask.end - ask.start for ask in store.asked) < sum(map(len, BYTES.values())) - 3 * MIB


def test_a_tensor_of_one_rank_alone_is_verified_by_it(manifest: Manifest, path: Path) -> None:
    flip_byte(path, offset(manifest, LARGE) + PIECE_BYTES)
    alone = Selection(rank=2, ranks=3, is_ours_alone=lambda name: name == LARGE)
    assert is_refused(path, manifest, alone)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_bytes", [1, 80 * MIB, 1024 * MIB])
def test_http_gives_the_same_and_every_byte_to_the_sink(
    manifest: Manifest, path: Path, ahead_bytes: int
) -> None:
    copied = bytearray(manifest.tensors_bytes)

    def sink(block: memoryview, offset: int) -> None:
        copied[offset : offset + len(block)] = block

    with HttpStore(path.parents[1]) as store:
        tensors = read_remote(url(store), manifest, sink=sink, ahead_bytes=ahead_bytes)
        kept = [(record.name, view) for record, view in tensors]  # a consumer may keep them all
    assert {name: bytes(view) for name, view in kept} == BYTES
    assert copied == path.read_bytes()


def test_small_tensors_share_a_request(tmp_path: Path) -> None:
    small = write_artifact(tmp_path / KEY, random_tensors(*[1_000] * 50))
    (batch,) = plan(list(small.tensors))
    assert len(batch.requests()) == 1


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    manifest: Manifest, path: Path
) -> None:
    def breaks(ask: Ask) -> Fault | None:
        return Fault(after_bytes=20 * MIB + 7) if ask.end - ask.start > 20 * MIB + 7 else None

    with HttpStore(path.parents[1], breaks) as store:
        got = {record.name: bytes(view) for record, view in read_remote(url(store), manifest)}
    assert got == BYTES
    assert sum(min(a.end - a.start, 20 * MIB + 7) for a in store.asked) <= manifest.tensors_bytes


def test_a_busy_store_is_asked_again(manifest: Manifest, path: Path) -> None:
    with HttpStore(path.parents[1], lambda ask: Fault(503) if ask.number <= 3 else None) as store:
        got = {record.name: bytes(view) for record, view in read_remote(url(store), manifest)}
    assert got == BYTES


@pytest.mark.parametrize(
    ("status", "says"), [(403, "expired"), (404, "not in the store"), (416, "416")]
)
def test_a_refusal_is_one_sentence_without_the_url(
    manifest: Manifest, path: Path, status: int, says: str
) -> None:
    with (
        HttpStore(path.parents[1], lambda _: Fault(status)) as store,
        pytest.raises(UnreachableArtifactError, match=says) as error,
    ):
        list(read_remote(url(store), manifest))
    assert "secret" not in str(error.value)


def test_a_store_that_stays_away_is_given_up(
    manifest: Manifest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_http, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(ranged_http, "PATIENCE_S", 0.0)
    with (
        HttpStore(path.parents[1], lambda _: Fault(after_bytes=0)) as store,
        pytest.raises(UnreachableArtifactError, match="after 3 attempts"),
    ):
        list(read_remote(url(store), manifest))


def test_starting_model_server_outlasts_an_outage_and_reports_it(
    manifest: Manifest,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ten times as many attempts as there are pauses; the deploy stage quotes lines with ERROR."""
    monkeypatch.setattr(ranged_http, "PAUSES_S", (0.0, 0.0, 0.0))
    away = lambda ask: Fault(503) if ask.number <= 30 else None  # noqa: E731
    with HttpStore(path.parents[1], away) as store:
        got = {record.name: bytes(view) for record, view in read_remote(url(store), manifest)}
    assert got == BYTES
    told = {record.getMessage() for record in caplog.records}
    assert any("ERROR: model.tensors cannot be read" in line and "503" in line for line in told)
    assert "secret" not in str(told)
    assert evidence(["loading", *told, "loading"]) == " | ".join(told)


def test_a_flipped_byte_behind_http_names_its_tensor(manifest: Manifest, path: Path) -> None:
    flip_byte(path, offset(manifest, LARGE) + PIECE_BYTES + 5)
    with HttpStore(path.parents[1]) as store, pytest.raises(DamagedArtifactError, match=LARGE):
        list(read_remote(url(store), manifest))


def test_a_buffer_is_used_again_only_when_nobody_has_it() -> None:
    pool = BufferPool(100 * MIB)
    first = pool.take(MIB)
    view = memoryview(first)[5:9].cast("B")
    assert pool.take(MIB) is not first
    del view
    gc.collect()
    assert any(pool.take(MIB) is first for _ in range(2))


def test_small_files_come_before_the_server_starts(manifest: Manifest, path: Path) -> None:
    with (
        HttpStore(path.parents[1]) as store,
        model_folder(ArtifactSource(store.uri()), cache=None) as found,
    ):
        assert {file.name for file in found.path.iterdir()} == {*SMALL_FILES, MANIFEST_NAME}
        assert read_manifest(found.path) == manifest
    assert not found.path.exists()


def test_presigned_urls_open_what_its_uri_does_not(manifest: Manifest, path: Path) -> None:
    with HttpStore(path.parents[1]) as store:
        urls = {name: f"{store.uri()}/{name}?signature=secret" for name in manifest.paths}
        source = ArtifactSource(f"s3://bucket/artifacts/{KEY}", urls)
        with model_folder(source, cache=None) as found:
            assert read_manifest(found.path) == manifest
    assert "secret" not in repr(source)
    with (
        pytest.raises(UnreachableArtifactError, match="has no URL"),
        model_folder(ArtifactSource(f"s3://bucket/{KEY}"), cache=None),
    ):
        pass


@pytest.mark.parametrize("where", ["here", "there"])
def test_another_tokenizer_than_was_written_is_damage(
    manifest: Manifest, path: Path, where: str
) -> None:
    (path.parent / "tokenizer.json").write_bytes(b"[]")
    with HttpStore(path.parents[1]) as store:
        uri = path.parent.as_uri() if where == "here" else store.uri()
        with (
            pytest.raises(DamagedArtifactError, match=r"tokenizer\.json"),
            model_folder(ArtifactSource(uri), cache=None),
        ):
            pass


def test_a_manifest_that_points_outside_is_refused(manifest: Manifest) -> None:
    record = manifest.tensors[0].model_copy(update={"offset": manifest.tensors_bytes})
    outside = manifest.model_copy(update={"tensors": (record,)})
    file = manifest.files[0].model_copy(update={"path": "../config.json"})
    for wrong in (outside, manifest.model_copy(update={"files": (file,)})):
        with pytest.raises(DamagedArtifactError, match="outside"):
            parse_manifest(wrong.model_dump_json().encode())
