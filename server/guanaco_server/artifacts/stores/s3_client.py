"""Talks to one bucket, or a folder of it, through boto3: small objects, listings, presigned URLs, translated errors.

Every call is synchronous and safe in any thread. boto3 takes 0.3 s to import, so that happens in the constructor.
What boto3 raises becomes one sentence of our own, which holds no signed URL, key or secret, and not the server's
address: developers and users read it too. ``S3Store.check`` adds the address, for the operator.
"""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from guanaco.errors import InvalidSettings, StoreUnreachable
from guanaco_server.engine.artifacts.store_trust import MAX_CHARS, context_of

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = (
    120  # completing an upload is one request, in which some servers copy the whole file
)
CONNECTIONS = 16
LONGEST_URL_LIFETIME_S = 7 * 24 * 3600  # S3 signs for no longer

Addressing = Literal["auto", "path", "virtual"]


# The right that each call needs, as a bucket policy names it. Multipart uploads are written with PutObject's.
RIGHTS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "Forbidden", "401", "403"})
UNKNOWN_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
)
WRONG_REGION = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",  # the same of a presigned URL
        "IllegalLocationConstraintException",
        "InvalidRegion",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
WRONG_CLOCK = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
WRONG_REGION_STATUS = "301"  # of a HEAD, which has no body to say more
CREDENTIALS_HINT = "Check s3_access_key_id and s3_secret_access_key."
RIGHTS_HINT = "docs/operating.md has the policy that the bucket needs."
REGION_NAMED = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>|expecting '([a-z0-9-]{1,40})'")
ERROR_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")


@dataclass(frozen=True)
class S3Config:
    """``endpoint`` is None for AWS. Without credentials here, boto3 looks where it always does."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    addressing: Addressing = "auto"
    ca_file: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    url_lifetime_s: int = 3600
    attempts: int = 8

    @property
    def place(self) -> str:
        """The server, for people."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2] if self.endpoint else "AWS S3"


def split_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``; InvalidSettings for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise InvalidSettings(
            "artifacts_url is not the URL of a bucket.",
            hint="Write s3://bucket or s3://bucket/folder.",
        )
    return parts.netloc, parts.path.strip("/")


@dataclass(frozen=True)
class StoredObject:
    name: str
    size_bytes: int
    modified_at: datetime


class Bucket:
    """``name`` is an object's key without the prefix."""

    def __init__(self, config: S3Config) -> None:
        self.config = config
        self._root = f"{config.prefix}/" if config.prefix else ""
        self.certificates = _read_certificates(config.ca_file)
        self.boto = _connect(config)

    def calls(self, name: str, *, may_miss: bool = False) -> AbstractContextManager[None]:
        """Translate what ``boto`` raises on ``name``; where ``may_miss``, Missing is raised for what is not there."""
        return translated(self.config.bucket, self.uri(name), may_miss=may_miss)

    def at(self, name: str) -> dict[str, str]:
        """Return the arguments of every boto3 call on one object."""
        return {"Bucket": self.config.bucket, "Key": self._root + name}

    def below(self, name: str) -> dict[str, str]:
        """Return the arguments of every boto3 listing."""
        return {"Bucket": self.config.bucket, "Prefix": self._root + name}

    def name_of(self, key: str) -> str:
        return key.removeprefix(self._root)

    def uri(self, name: str) -> str:
        return f"s3://{self.config.bucket}/{self._root}{name}"

    def get(self, name: str) -> bytes | None:
        try:
            with self.calls(name, may_miss=True):
                data: bytes = self.boto.get_object(**self.at(name))["Body"].read()
        except Missing:
            return None
        return data

    def open(self, name: str) -> Any:
        """Return the object's body, for ``read_piece`` and ``close``; None if there is none."""
        try:
            with self.calls(name, may_miss=True):
                return self.boto.get_object(**self.at(name))["Body"]
        except Missing:
            return None

    def read_piece(self, name: str, body: Any, size: int) -> bytes:
        with self.calls(name):
            data: bytes = body.read(size)
        return data

    def put(self, name: str, data: bytes) -> None:
        """The checksum is a header of its own: a trailer, boto3's other way, is refused by some servers."""
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        with self.calls(name):
            self.boto.put_object(**self.at(name), Body=data, ChecksumSHA256=digest)

    def size(self, name: str) -> int | None:
        try:
            with self.calls(name, may_miss=True):
                return int(self.boto.head_object(**self.at(name))["ContentLength"])
        except Missing:
            return None

    def delete(self, name: str) -> None:
        try:
            with self.calls(name, may_miss=True):
                self.boto.delete_object(**self.at(name))
        except Missing:
            return

    def objects(self, name: str) -> Iterator[StoredObject]:
        """List every object whose name begins with the prefix."""
        with self.calls(name):
            pages = self.boto.get_paginator("list_objects_v2").paginate(**self.below(name))
            for page in pages:
                for entry in page.get("Contents", ()):
                    yield StoredObject(
                        self.name_of(entry["Key"]), entry["Size"], entry["LastModified"]
                    )

    def presign(self, operation: str, name: str, **more: Any) -> str:
        """Return a URL that does one thing with one object until it expires, and is a secret until then."""
        lifetime = min(self.config.url_lifetime_s, LONGEST_URL_LIFETIME_S)
        with self.calls(name):
            url: str = self.boto.generate_presigned_url(
                operation, Params={**self.at(name), **more}, ExpiresIn=lifetime
            )
        return url


def _connect(config: S3Config) -> Any:
    import boto3
    from botocore.config import Config

    options = Config(
        signature_version="s3v4",
        s3={"addressing_style": config.addressing},
        retries={"mode": "standard", "total_max_attempts": config.attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session(
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            region_name=config.region,
        ).client("s3", endpoint_url=config.endpoint, verify=config.ca_file, config=options)
    except ValueError:
        raise InvalidSettings(
            "s3_endpoint is not the URL of a server.",
            hint="Write https://host or http://host:port.",
        ) from None


def _read_certificates(ca_file: str | None) -> str | None:
    """Return the text of s3_ca_file, which jobs and model servers get; InvalidSettings if it is of no use."""
    if ca_file is None:
        return None
    try:
        text = Path(ca_file).read_text("ascii", errors="replace")
    except OSError as error:
        raise InvalidSettings(f"s3_ca_file cannot be read: {ca_file}: {error.strerror}.") from None
    if len(text) > MAX_CHARS:
        raise InvalidSettings(
            f"s3_ca_file has {len(text):,} bytes, more than {MAX_CHARS:,}.",
            hint="Leave in it only the certificates of the S3 server's own authority.",
        )
    try:
        context_of(text)
    except (ssl.SSLError, ValueError):
        raise InvalidSettings(
            f"s3_ca_file holds no certificate: {ca_file}.", hint="It is a file in PEM format."
        ) from None
    return text


class Missing(Exception):
    """No such object or upload; caught inside the store."""


@contextmanager
def translated(bucket: str, place: str, *, may_miss: bool) -> Iterator[None]:
    """StoreUnreachable, or Missing where ``may_miss`` allows that there is no such thing; ``place`` is what the call is about."""
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError

    try:
        yield
    except boto.ClientError as error:
        answer = error.response.get("Error", {})
        code = str(answer.get("Code", ""))
        if may_miss and code in MISSING:
            raise Missing(code) from None
        region = str(answer.get("Region") or _region_named(str(answer.get("Message", ""))))
        raise answered(code, error.operation_name, bucket, place, region) from None
    except (boto.NoCredentialsError, boto.PartialCredentialsError):
        raise StoreUnreachable(
            "There are no credentials for the artifact store.",
            hint="Set s3_access_key_id and s3_secret_access_key, or what boto3 reads by itself.",
            is_lasting=True,
        ) from None
    except boto.SSLError:
        raise StoreUnreachable(
            "The certificate of the artifact store is not trusted.",
            hint="Name its authority's certificate in s3_ca_file.",
            is_lasting=True,
        ) from None
    except (
        boto.HTTPClientError,
        boto.ConnectionError,
    ):  # no route, nobody listens, no answer in time, an answer cut short
        raise StoreUnreachable(
            "The artifact store does not answer.",
            hint="Check s3_endpoint, and that the server runs.",
        ) from None
    except KeyError:  # an answer that was cut short within its headers
        raise StoreUnreachable(
            "The artifact store's answer lacks what belongs to it.",
            hint="Check s3_endpoint, and what is between this machine and the server.",
        ) from None
    except (boto.BotoCoreError, ValueError) as error:
        raise StoreUnreachable(
            f"The artifact store cannot be used: {type(error).__name__}.",
            hint="Check artifacts_url and the s3_ settings.",
            is_lasting=not isinstance(error, ResponseParserError),  # an answer that was cut short
        ) from None


def refusal(status: int, body: str, operation: str, bucket: str, place: str) -> StoreUnreachable:
    """Return the same for an answer to a presigned URL, which boto3 does not see."""
    code = found[1] if (found := ERROR_CODE.search(body)) else str(status)
    return answered(code, operation, bucket, place, _region_named(body))


def answered(
    code: str, operation: str, bucket: str, place: str, region: str = ""
) -> StoreUnreachable:
    """Make the sentence for an error's code; ``region`` is the bucket's, where the server names it."""
    if code == "NoSuchBucket":
        return StoreUnreachable(
            f"There is no bucket {bucket}.",
            hint="Create it, or correct artifacts_url or s3_region.",
            is_lasting=True,
        )
    if code in DENIED:
        return StoreUnreachable(
            f"The artifact store denies the platform {operation} on {place} ({code}).",
            hint=f"The credentials need {RIGHTS.get(operation, operation)}: {RIGHTS_HINT}",
            is_lasting=True,
        )
    if code in UNKNOWN_CREDENTIALS:
        return StoreUnreachable(
            f"The artifact store refuses the platform's credentials ({code}), at {operation} on {place}.",
            hint=CREDENTIALS_HINT,
            is_lasting=True,
        )
    if code in WRONG_CLOCK:
        return StoreUnreachable(
            "The clocks of this machine and of the artifact store differ too much.",
            hint="Set this machine's clock.",
            is_lasting=True,
        )
    if code in WRONG_REGION or code == WRONG_REGION_STATUS:
        return StoreUnreachable(
            f"The bucket {bucket} is in another region than s3_region says.",
            hint=f"Set s3_region to {region}." if region else "Correct s3_region.",
            is_lasting=True,
        )
    return StoreUnreachable(
        f"The artifact store answered {code or 'an unreadable error'} to {operation} on {place}.",
        hint="Check s3_endpoint and artifacts_url; the server's log may say more.",
    )


def _region_named(text: str) -> str:
    found = REGION_NAMED.search(text)
    return (found[1] or found[2]) if found else ""
