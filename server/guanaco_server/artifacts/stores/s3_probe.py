"""Tries each right that the store needs of its bucket, before anything is started: one small object, one small upload.

It uses the names that an artifact's files have, so that rights that were given for a part of the bucket only are seen.
What a killed probe leaves behind is a stale staging place, and collected as one.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from contextlib import suppress
from typing import Any

import httpx

from guanaco.errors import SerializerDied, StoreUnreachable
from guanaco_server.artifacts.stores.s3_client import Bucket, refusal
from guanaco_server.artifacts.stores.s3_uploads import Uploads
from guanaco_server.engine.artifacts.store_trust import context_of

BODY = b"Guanaco tries out its artifact store. This object may be deleted."
MAX_BYTES = 1
TIMEOUT_S = 30


def try_out(bucket: Bucket, uploads: Uploads) -> None:
    """StoreUnreachable, with the operation that was denied, unless all is allowed."""
    key = uuid.uuid4().hex
    try:
        _try_objects(bucket, f"staging/{key}/probe")
        _try_uploads(bucket, uploads, key)
    except BaseException:
        with suppress(StoreUnreachable):
            _clean_up(bucket, uploads, key)
        raise
    _clean_up(bucket, uploads, key)


def _try_objects(bucket: Bucket, name: str) -> None:
    bucket.put(name, b"")
    _put_presigned(bucket, "put_object", name)
    if name not in {found.name for found in bucket.objects(name)}:
        raise _unfit("does not list an object that was just written")
    if bucket.get(name) != BODY or bucket.size(name) != len(BODY):
        raise _unfit("gives back other bytes than were written", is_lasting=False)
    bucket.delete(name)
    if bucket.get(name) is not None:
        raise _unfit("does not delete")


def _try_uploads(bucket: Bucket, uploads: Uploads, key: str) -> None:
    """One upload is aborted, another one completed."""
    uploads.create(key, MAX_BYTES)
    uploads.abort(key)  # which lists them first
    upload = uploads.create(key, MAX_BYTES)
    name = uploads.file(key)
    _put_presigned(bucket, "upload_part", name, UploadId=upload.upload_id, PartNumber=1)
    try:
        uploads.complete(key, len(BODY))  # which lists the parts first
    except SerializerDied:
        raise _unfit("does not keep the parts of an upload") from None
    if bucket.get(name) != BODY:
        raise _unfit("makes another file of an upload's parts", is_lasting=False)


def _clean_up(bucket: Bucket, uploads: Uploads, key: str) -> None:
    uploads.abort(key)
    for folder in (f"artifacts/{key}/", f"staging/{key}/"):
        for found in list(bucket.objects(folder)):
            bucket.delete(found.name)


def _put_presigned(bucket: Bucket, operation: str, name: str, **more: Any) -> None:
    """Write as a job does, with nothing but a URL."""
    url = bucket.presign(operation, name, **more)
    digest = base64.b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()
    trusted = context_of(bucket.certificates) if bucket.certificates else True
    try:
        answer = httpx.put(
            url, content=BODY, headers={"Content-MD5": digest}, verify=trusted, timeout=TIMEOUT_S
        )
    except httpx.HTTPError as error:
        what = f"does not take presigned uploads ({type(error).__name__})"
        raise _unfit(what, is_lasting=False) from None
    if answer.status_code != 200:
        title = operation.title().replace("_", "")
        at = bucket.uri(name)
        raise refusal(answer.status_code, answer.text, title, bucket.config.bucket, at)


def _unfit(what: str, *, is_lasting: bool = True) -> StoreUnreachable:
    """``is_lasting`` is False where an answer that was cut short looks alike."""
    return StoreUnreachable(
        f"The artifact store {what}.",
        hint="Check s3_endpoint, s3_addressing and what the credentials allow in the bucket.",
        is_lasting=is_lasting,
    )
