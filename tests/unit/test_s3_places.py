"""Tests where the S3 store puts things, and how it names them; all of it without a server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from guanaco.errors import InvalidSettings
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import Addressing, Bucket, S3Config, split_url
from guanaco_server.artifacts.stores.s3_uploads import (
    MAX_PARTS,
    MIN_PART_BYTES,
    part_bytes_for,
    part_count,
)

KEY = "ab" * 32
SECRET = "correct-horse"
CONFIG = {"bucket": "models", "access_key_id": "platform", "secret_access_key": SECRET}


@pytest.mark.parametrize("max_bytes", [0, 1, MIN_PART_BYTES, 64 * 2**30, 2**40, 5 * 2**40])
def test_the_parts_are_as_small_as_their_number_allows(max_bytes: int) -> None:
    part_bytes = part_bytes_for(max_bytes)
    assert part_bytes >= MIN_PART_BYTES
    assert part_bytes & (part_bytes - 1) == 0
    assert part_count(max_bytes, part_bytes) * part_bytes >= max_bytes
    assert 1 <= part_count(max_bytes, part_bytes) <= MAX_PARTS
    assert part_bytes == MIN_PART_BYTES or part_count(max_bytes, part_bytes // 2) > MAX_PARTS


@pytest.mark.parametrize(
    ("endpoint", "addressing", "host", "path"),
    [
        ("http://s3.example:9000", "path", "s3.example:9000", "/models/a/b/x"),
        ("http://s3.example:9000", "virtual", "models.s3.example:9000", "/a/b/x"),
        ("http://127.0.0.1:9000", "auto", "127.0.0.1:9000", "/models/a/b/x"),
        (None, "virtual", "models.s3.amazonaws.com", "/a/b/x"),
        (None, "path", "s3.amazonaws.com", "/models/a/b/x"),
    ],
)
def test_bucket_name_is_in_the_path_or_the_host(
    endpoint: str | None, addressing: Addressing, host: str, path: str
) -> None:
    bucket = Bucket(S3Config(**CONFIG, prefix="a/b", endpoint=endpoint, addressing=addressing))
    url = urlsplit(bucket.presign("get_object", "x"))
    assert (url.netloc, url.path) == (host, path)


def test_presigned_url_carries_no_secret_and_says_its_end() -> None:
    url = Bucket(S3Config(**CONFIG, url_lifetime_s=4_000)).presign("get_object", "x")
    assert SECRET not in url
    assert "X-Amz-Expires=4000&" in url
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url


def test_no_url_outlives_the_week_that_s3_allows() -> None:
    url = Bucket(S3Config(**CONFIG, url_lifetime_s=10**7)).presign("get_object", "x")
    assert "X-Amz-Expires=604800&" in url


@pytest.mark.parametrize(
    ("prefix", "uri"),
    [("", f"s3://models/artifacts/{KEY}"), ("a/b", f"s3://models/a/b/artifacts/{KEY}")],
)
def test_the_uri_of_an_artifact_names_its_bucket_and_folder(prefix: str, uri: str) -> None:
    assert S3Store(S3Config(**CONFIG, prefix=prefix)).uri(KEY) == uri


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://models", "models", ""),
        ("s3://models/", "models", ""),
        ("s3://models/a/b/", "models", "a/b"),
    ],
)
def test_an_artifacts_url_is_a_bucket_and_a_folder(url: str, bucket: str, prefix: str) -> None:
    assert split_url(url) == (bucket, prefix)


@pytest.mark.parametrize("url", ["models", "https://models/a", "s3:///a", "s3://m?x=1", "s3://m#x"])
def test_anything_else_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(InvalidSettings, match="artifacts_url"):
        split_url(url)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"endpoint": "localhost:9000"}, "s3_endpoint"),
        ({"endpoint": "ftp//x"}, "s3_endpoint"),
        ({"ca_file": "/no/such/file"}, "s3_ca_file"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(changes: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidSettings, match=named):
        S3Store(S3Config(**CONFIG, **changes))


def test_a_configuration_can_be_printed(tmp_path: Path) -> None:
    config = S3Config(**CONFIG, endpoint="https://user:hush@s3.example:9000")
    assert SECRET not in repr(config)
    assert config.place == "s3.example:9000"
