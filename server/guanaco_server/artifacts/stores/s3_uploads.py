"""The tensors file of an artifact that is being written: one multipart upload, which outlives the jobs that feed it.

    staging/<key>/upload.json   which upload, and the size of its parts

All parts but the last have one size, which some servers insist on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ValidationError

from guanaco.errors import SerializerDied
from guanaco_server.artifacts.stores.s3_client import Bucket, Missing
from guanaco_server.artifacts.stores.store import checked_key
from guanaco_server.formats.manifest import TENSORS_NAME

MIN_PART_BYTES = 16 * 1024**2
MAX_PARTS = 9_000  # S3 allows 10,000
UPLOAD_NAME = "upload.json"


class OpenUpload(BaseModel):
    upload_id: str
    part_bytes: int


@dataclass(frozen=True)
class ListedUpload:
    """An open upload, as a listing shows it."""

    name: str
    upload_id: str
    at: datetime


@dataclass(frozen=True)
class UploadedPart:
    number: int
    size_bytes: int
    etag: str
    modified_at: datetime


class Uploads:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def file(self, key: str) -> str:
        """Return the name of the tensors file."""
        return _file(key)

    def find(self, key: str, max_bytes: int) -> OpenUpload | None:
        """Return the upload that an earlier ``create`` opened and nobody has ended, if it has room for so much."""
        upload = self._recorded_upload(key)
        if upload is None or part_count(max_bytes, upload.part_bytes) > MAX_PARTS:
            return None
        try:
            for _part in self._parts(_file(key), upload.upload_id):
                break
        except Missing:
            return None
        return upload

    def create(self, key: str, max_bytes: int) -> OpenUpload:
        with self._bucket.calls(_file(key)):
            answer = self._bucket.boto.create_multipart_upload(**self._bucket.at(_file(key)))
            upload_id: str = answer["UploadId"]
        upload = OpenUpload(upload_id=upload_id, part_bytes=part_bytes_for(max_bytes))
        self._bucket.put(_note(key), upload.model_dump_json().encode())
        return upload

    def part_urls(self, key: str, upload: OpenUpload, max_bytes: int) -> tuple[str, ...]:
        return tuple(
            self._bucket.presign(
                "upload_part", _file(key), UploadId=upload.upload_id, PartNumber=number
            )
            for number in range(1, part_count(max_bytes, upload.part_bytes) + 1)
        )

    def parts(self, key: str, upload: OpenUpload) -> list[UploadedPart]:
        """List what the server has of the upload."""
        return list(self._parts(_file(key), upload.upload_id))

    def complete(self, key: str, size_bytes: int) -> None:
        """Make the parts one file of this size; SerializerDied unless they are one. May be repeated."""
        upload = self._recorded_upload(key)
        try:
            if upload is None:
                raise Missing
            parts = list(self._parts(_file(key), upload.upload_id))
            _require_whole(parts, size_bytes)
            numbered = [{"PartNumber": part.number, "ETag": part.etag} for part in parts]
            with self._bucket.calls(_file(key), may_miss=True):
                self._bucket.boto.complete_multipart_upload(
                    **self._bucket.at(_file(key)),
                    UploadId=upload.upload_id,
                    MultipartUpload={"Parts": numbered},
                )
        except Missing:  # completed before, or never begun: the file's size tells
            if self._bucket.size(_file(key)) != size_bytes:
                raise _not_whole("its upload is gone") from None

    def abort(self, key: str) -> None:
        """End every upload of this artifact and drop its parts."""
        upload = self._recorded_upload(key)
        noted = {upload.upload_id} if upload else set()
        for upload_id in noted | {found.upload_id for found in self.all_open(_file(key))}:
            try:
                with self._bucket.calls(_file(key), may_miss=True):
                    self._bucket.boto.abort_multipart_upload(
                        **self._bucket.at(_file(key)), UploadId=upload_id
                    )
            except Missing:
                continue

    def all_open(self, name: str = "artifacts/") -> Iterator[ListedUpload]:
        """Every open upload to an object whose name begins so; a server may leave some out."""
        try:
            with self._bucket.calls(name, may_miss=True):
                paginator = self._bucket.boto.get_paginator("list_multipart_uploads")
                for page in paginator.paginate(**self._bucket.below(name)):
                    for entry in page.get("Uploads", ()):
                        found = self._bucket.name_of(entry["Key"])
                        yield ListedUpload(found, entry["UploadId"], entry["Initiated"])
        except Missing:  # so says rclone of a bucket that never had an upload
            return

    def last_written(self, upload: ListedUpload) -> datetime:
        """Return when the newest part was stored, or when the upload began."""
        try:
            parts = self._parts(upload.name, upload.upload_id)
            return max((part.modified_at for part in parts), default=upload.at)
        except Missing:
            return upload.at

    def _parts(self, name: str, upload_id: str) -> Iterator[UploadedPart]:
        """List the parts in their order. Raise Missing if there is no such upload."""
        seen = 0  # rclone's pages overlap
        with self._bucket.calls(name, may_miss=True):
            paginator = self._bucket.boto.get_paginator("list_parts")
            for page in paginator.paginate(**self._bucket.at(name), UploadId=upload_id):
                for entry in page.get("Parts", ()):
                    if entry["PartNumber"] > seen:
                        seen = entry["PartNumber"]
                        yield UploadedPart(
                            number=seen,
                            size_bytes=entry["Size"],
                            etag=entry["ETag"],
                            modified_at=entry["LastModified"],
                        )

    def _recorded_upload(self, key: str) -> OpenUpload | None:
        data = self._bucket.get(_note(key))
        try:
            return OpenUpload.model_validate_json(data) if data is not None else None
        except ValidationError:  # not ours to go on with: a new upload takes its place
            return None


def part_bytes_for(max_bytes: int) -> int:
    """Return the smallest power of two, of 16 MiB or more, of which MAX_PARTS are enough."""
    size = MIN_PART_BYTES
    while part_count(max_bytes, size) > MAX_PARTS:
        size *= 2
    return size


def part_count(max_bytes: int, part_bytes: int) -> int:
    return max(1, -(-max_bytes // part_bytes))


def _file(key: str) -> str:
    return f"artifacts/{checked_key(key)}/{TENSORS_NAME}"


def _note(key: str) -> str:
    return f"staging/{checked_key(key)}/{UPLOAD_NAME}"


def _require_whole(parts: list[UploadedPart], size_bytes: int) -> None:
    numbers = [part.number for part in parts]
    if missing := set(range(1, max(numbers, default=1) + 1)).difference(numbers):
        raise _not_whole(f"part {min(missing)} is missing")
    found = sum(part.size_bytes for part in parts)
    if found != size_bytes:
        raise _not_whole(f"its parts have {found:,} bytes instead of {size_bytes:,}")


def _not_whole(why: str) -> SerializerDied:
    return SerializerDied(f"The serializer left no whole artifact: {TENSORS_NAME}, {why}.")
