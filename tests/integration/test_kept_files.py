"""Small files of artifacts in a bucket: those that were read once are there when the bucket is away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores.kept_files import KeptFiles
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import S3Config
from guanaco_server.formats.manifest import MANIFEST_NAME
from guanaco_server.http.errors import status_of
from tests.fixtures.s3 import S3Server
from tests.fixtures.store_jobs import FILES, KEY, job, manifest, write

NOBODY = {"endpoint": "http://127.0.0.1:9", "attempts": 1}


@pytest.fixture
def config(moto: S3Server) -> S3Config:
    return moto.bucket()


def kept_in(folder: Path) -> KeptFiles:
    return KeptFiles(folder / "small-files", folder / "node-cache")


async def published(config: S3Config) -> None:
    store = S3Store(config)
    await write(await store.begin(job(), 1_000), manifest())
    await store.publish(KEY)


async def test_after_a_restart_chat_needs_no_bucket(config: S3Config, tmp_path: Path) -> None:
    await published(config)
    store = S3Store(config, kept_in(tmp_path))
    assert await store.read(KEY, "tokenizer.json") == FILES["tokenizer.json"]
    restarted = S3Store(replace(config, **NOBODY), kept_in(tmp_path))
    assert await restarted.read(KEY, "tokenizer.json") == FILES["tokenizer.json"]
    with pytest.raises(FileNotFoundError):  # the manifest tells that there is no such template
        await restarted.read(KEY, "chat_template.jinja")
    with pytest.raises(StoreUnreachable):  # which nobody has read before
        await restarted.read(KEY, "config.json")


async def test_model_server_reads_its_cache_while_the_bucket_is_away(
    config: S3Config, tmp_path: Path
) -> None:
    folder = tmp_path / "node-cache" / KEY
    folder.mkdir(parents=True)
    (folder / MANIFEST_NAME).write_text(manifest().model_dump_json())
    (folder / "tokenizer.json").write_bytes(FILES["tokenizer.json"])
    (folder / "config.json").write_bytes(b"changed")
    store = S3Store(replace(config, **NOBODY), kept_in(tmp_path))
    assert await store.read(KEY, "tokenizer.json") == FILES["tokenizer.json"]
    with pytest.raises(StoreUnreachable):
        await store.read(KEY, "config.json")


async def test_a_kept_file_that_was_damaged_is_read_anew(config: S3Config, tmp_path: Path) -> None:
    await published(config)
    store = S3Store(config, kept_in(tmp_path))
    await store.read(KEY, "tokenizer.json")
    (tmp_path / "small-files" / KEY / "tokenizer.json").write_bytes(b"damaged")
    assert await store.read(KEY, "tokenizer.json") == FILES["tokenizer.json"]


async def test_a_deleted_artifact_is_not_kept(config: S3Config, tmp_path: Path) -> None:
    await published(config)
    store = S3Store(config, kept_in(tmp_path))
    await store.read(KEY, "tokenizer.json")
    await store.delete(KEY)
    with pytest.raises(FileNotFoundError):
        await store.read(KEY, "tokenizer.json")


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    written = manifest(files={"tokenizer.json": bytes(10_000)})
    kept = KeptFiles(tmp_path / "kept", tmp_path / "none", max_bytes=15_000)
    first, second = ("ab" * 32, "cd" * 32)
    for key in (first, second):
        kept.keep(written.model_copy(update={"key": key}), "tokenizer.json", bytes(10_000))
    assert kept.find(first, "tokenizer.json") is None
    assert kept.find(second, "tokenizer.json") == bytes(10_000)


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "small-files").write_text("a file in its place")
    kept = kept_in(tmp_path)
    kept.keep(manifest(), "tokenizer.json", FILES["tokenizer.json"])
    assert kept.find(KEY, "tokenizer.json") is None


def test_an_app_is_told_to_try_again_later() -> None:
    assert status_of(StoreUnreachable("The artifact store does not answer.")) == 503
