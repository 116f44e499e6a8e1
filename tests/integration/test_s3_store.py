"""Tests what only a store in a bucket has to get right."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from guanaco.errors import SerializerDied, StoreUnreachable
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import S3Config
from guanaco_server.artifacts.stores.s3_uploads import MIN_PART_BYTES, OpenUpload
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME
from guanaco_server.serializer.targets import PieceFacts, ResumeLogState
from guanaco_server.serializer.task import JOURNAL_NAME, SerializerTask, Upload
from tests.fixtures.s3 import SECRET, S3Server, boto, left_in
from tests.fixtures.store_jobs import FILES, KEY, TENSORS, job, manifest, put, read, write

BIG = bytes(2 * MIN_PART_BYTES) + b"the end"  # three parts
MAX_BYTES = len(BIG) + MIN_PART_BYTES
KEYS = 1_001  # a listing has a thousand a page


@pytest.fixture
def config(s3_server: S3Server) -> S3Config:
    return s3_server.bucket()


@pytest.fixture
def store(config: S3Config) -> S3Store:
    return S3Store(config)


async def upload_of(store: S3Store) -> Upload:
    ticket_url = await store.begin(job(), MAX_BYTES)
    return SerializerTask.model_validate_json(await read(ticket_url)).upload


def upload_id(upload: Upload) -> str:
    return parse_qs(urlsplit(upload.part_urls[0]).query)["uploadId"][0]


def complete(config: S3Config) -> None:
    """Be a platform that dies after it completed the upload."""
    client = boto(config)
    at = {"Bucket": config.bucket, "Key": f"artifacts/{KEY}/{TENSORS_NAME}"}
    note = client.get_object(Bucket=config.bucket, Key=f"staging/{KEY}/upload.json")["Body"].read()
    upload = OpenUpload.model_validate_json(note).upload_id
    found = client.list_parts(**at, UploadId=upload)["Parts"]
    parts = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in found]
    client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": parts})


async def test_an_upload_goes_on_where_a_killed_job_left_it(
    store: S3Store, config: S3Config
) -> None:
    written = manifest(tensors_bytes=len(BIG))
    first = await upload_of(store)
    await write(await store.begin(job(), MAX_BYTES), written, tensors=BIG, skipped_parts=(2,))
    with pytest.raises(SerializerDied, match="part 2 is missing"):
        await store.publish(KEY)
    again = await upload_of(store)
    assert upload_id(again) == upload_id(first)
    assert len(again.part_urls) == 4
    await write(await store.begin(job(), MAX_BYTES), written, tensors=BIG, skipped_parts=(1, 3))
    assert await store.publish(KEY) == written
    assert await read((await store.access(KEY))[TENSORS_NAME]) == BIG
    assert left_in(config) == sorted(
        f"artifacts/{KEY}/{name}" for name in (*FILES, TENSORS_NAME, MANIFEST_NAME)
    )


async def test_a_part_that_the_server_lost_is_sent_again(store: S3Store, config: S3Config) -> None:
    """The journal names three parts, of which the server has one as it was sent, one otherwise, and one not at all."""
    upload = await upload_of(store)
    written = manifest(tensors_bytes=len(BIG))
    await write(await store.begin(job(), MAX_BYTES), written, tensors=BIG, skipped_parts=(2,))
    listed = boto(config).list_parts(
        Bucket=config.bucket, Key=f"artifacts/{KEY}/{TENSORS_NAME}", UploadId=upload.identity
    )
    etags = {part["PartNumber"]: part["ETag"].strip('"') for part in listed["Parts"]}
    assert set(etags) == {1, 3}
    claimed = ResumeLogState(
        plan="a plan",
        upload=upload.identity,
        pieces={"0:0": PieceFacts(sha256="ab" * 32, crc32=1)},
        parts={1: etags[1], 2: etags[1], 3: etags[1]},
    )
    async with httpx.AsyncClient() as http:
        await put(http, upload.put_urls[JOURNAL_NAME], claimed.model_dump_json().encode())
    begun = await upload_of(store)
    journal = ResumeLogState.model_validate_json(await read(begun.get_urls[JOURNAL_NAME]))
    assert begun.identity == upload.identity
    assert journal == claimed.model_copy(update={"parts": {1: etags[1]}})


async def test_upload_too_small_for_the_artifact_is_not_resumed(
    store: S3Store,
) -> None:
    first = await upload_of(store)
    ticket_url = await store.begin(job(), 9_001 * MIN_PART_BYTES)
    other = SerializerTask.model_validate_json(await read(ticket_url)).upload
    assert upload_id(other) != upload_id(first)
    assert other.part_bytes == 2 * MIN_PART_BYTES


async def test_a_publish_that_was_cut_short_can_be_repeated(
    store: S3Store, config: S3Config
) -> None:
    await write(await store.begin(job(), MAX_BYTES), manifest())
    complete(config)
    assert await store.find(KEY) is None
    assert await store.publish(KEY) == manifest()
    assert await store.publish(KEY) == manifest()


async def test_a_new_upload_knows_nothing_of_an_earlier_one(
    store: S3Store, config: S3Config
) -> None:
    """Or a job would believe the journal, and leave out parts that are gone."""
    await write(await store.begin(job(), MAX_BYTES), manifest())
    complete(config)
    upload = await upload_of(store)
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await read(upload.get_urls[JOURNAL_NAME])
    with pytest.raises(SerializerDied, match="no manifest"):
        await store.publish(KEY)


@pytest.mark.parametrize("prefix", ["", "a/b"])
async def test_discarding_leaves_nothing_in_the_bucket(s3_server: S3Server, prefix: str) -> None:
    config = s3_server.bucket(prefix=prefix)
    store = S3Store(config)
    await write(await store.begin(job(), MAX_BYTES), manifest())
    assert len(left_in(config)) == len(FILES) + 5  # ticket, note, journal, manifest, open upload
    assert all(name.startswith(prefix) for name in left_in(config))
    await store.discard(KEY)
    assert left_in(config) == []


async def test_discarding_leaves_nothing_of_a_completed_upload_either(
    store: S3Store, config: S3Config
) -> None:
    await write(await store.begin(job(), MAX_BYTES), manifest())
    complete(config)
    await store.discard(KEY)
    assert left_in(config) == []


async def test_deleting_leaves_nothing_in_the_bucket(store: S3Store, config: S3Config) -> None:
    await write(await store.begin(job(), MAX_BYTES), manifest())
    await store.publish(KEY)
    await store.delete(KEY)
    assert left_in(config) == []


async def test_leftovers_of_a_cut_delete_are_removed_as_stale(
    store: S3Store, config: S3Config
) -> None:
    await write(await store.begin(job(), MAX_BYTES), manifest())
    await store.publish(KEY)
    boto(config).delete_object(Bucket=config.bucket, Key=f"artifacts/{KEY}/{MANIFEST_NAME}")
    assert await store.list_keys() == []
    assert await store.discard_stale(-5) == [KEY]
    assert left_in(config) == []


async def test_a_file_that_changed_in_the_bucket_is_not_read(
    store: S3Store, config: S3Config
) -> None:
    await write(await store.begin(job(), MAX_BYTES), manifest())
    await store.publish(KEY)
    name = f"artifacts/{KEY}/config.json"
    boto(config).put_object(Bucket=config.bucket, Key=name, Body=b"{}")
    with pytest.raises(StoreUnreachable, match="is not what was stored"):
        await store.read(KEY, "config.json")


async def test_a_manifest_that_is_none_is_said_in_a_sentence(
    store: S3Store, config: S3Config
) -> None:
    name = f"artifacts/{KEY}/{MANIFEST_NAME}"
    boto(config).put_object(Bucket=config.bucket, Key=name, Body=b"{}")
    with pytest.raises(StoreUnreachable, match="cannot be read"):
        await store.find(KEY)


async def test_more_keys_than_one_page_holds_are_all_listed(
    store: S3Store, config: S3Config
) -> None:
    keys = [f"{number:08x}" for number in range(KEYS)]

    def put(key: str) -> None:
        name = f"artifacts/{key}/{MANIFEST_NAME}"
        boto(config).put_object(Bucket=config.bucket, Key=name, Body=b"")

    with ThreadPoolExecutor(8) as threads:
        await asyncio.to_thread(lambda: list(threads.map(put, keys)))
    assert await store.list_keys() == keys


async def test_a_ticket_carries_no_secret(store: S3Store) -> None:
    ticket_url = await store.begin(job(), MAX_BYTES)
    assert SECRET not in ticket_url + (await read(ticket_url)).decode()


async def test_presigned_urls_expire_and_cannot_be_changed(s3_server: S3Server) -> None:
    if not s3_server.does_check:
        pytest.skip(f"{s3_server.name} checks neither signatures nor their age.")
    config = s3_server.bucket()
    lasting = await S3Store(config).begin(job(), MAX_BYTES)
    ticket_url = await S3Store(replace(config, url_lifetime_s=1)).begin(job(), MAX_BYTES)
    async with httpx.AsyncClient() as http:
        changed = await http.get(lasting.replace("ticket.json", "upload.json"))
        assert changed.status_code == 403
        await asyncio.sleep(2)  # the one thing that only time can do
        assert (await http.get(ticket_url)).status_code in (400, 403)


async def test_second_platform_on_the_bucket_finds_published_artifacts(
    config: S3Config,
) -> None:
    first, second = S3Store(config), S3Store(config)
    await write(await first.begin(job(), MAX_BYTES), manifest())
    await write(await second.begin(job(), MAX_BYTES), manifest())
    await first.publish(KEY)
    assert await second.publish(KEY) == await second.find(KEY) == manifest()
    assert await read((await second.access(KEY))[TENSORS_NAME]) == TENSORS
