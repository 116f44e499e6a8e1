"""Does a bucket allow all that a store needs? Asked at the start, so that no submission finds out."""

from __future__ import annotations

import base64
import hashlib
import ssl
import uuid

import httpx

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores.s3_client import Bucket

BODY = b"Guanaco tries out its artifact store. This object may be deleted."
TIMEOUT_S = 30


def try_out(bucket: Bucket) -> None:
    """Write, overwrite through a presigned URL as a job does, list, read and delete an object of our own."""
    name = f"probe-{uuid.uuid4().hex}"
    bucket.put(name, b"")
    try:
        _put_presigned(bucket, name)
        if name not in {found.name for found in bucket.objects(name)}:
            raise _unfit(bucket, "does not list an object that was just written")
        if bucket.get(name) != BODY:
            raise _unfit(bucket, "gives back other bytes than were written")
    finally:
        bucket.delete(name)
    if bucket.get(name) is not None:
        raise _unfit(bucket, "does not delete")


def _put_presigned(bucket: Bucket, name: str) -> None:
    url = bucket.presign("put_object", name)
    digest = base64.b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()
    trusted = ssl.create_default_context(cafile=bucket.config.ca_file)
    try:
        answer = httpx.put(
            url, content=BODY, headers={"Content-MD5": digest}, verify=trusted, timeout=TIMEOUT_S
        )
    except httpx.HTTPError as error:
        raise _unfit(bucket, f"does not take presigned uploads ({type(error).__name__})") from None
    if answer.status_code != 200:
        raise _unfit(bucket, f"answers {answer.status_code} to a presigned upload")


def _unfit(bucket: Bucket, what: str) -> StoreUnreachable:
    return StoreUnreachable(
        f"The artifact store at {bucket.config.place} {what}.",
        hint="Check s3_endpoint, s3_addressing and what the credentials allow in the bucket.",
    )
