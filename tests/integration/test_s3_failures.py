"""A bucket that cannot be used says why in a sentence, and tells no secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import Bucket, S3Config, translated
from guanaco_server.artifacts.stores.s3_uploads import Uploads
from tests.fixtures.s3 import SECRET, S3Server
from tests.fixtures.serializer_jobs import run
from tests.fixtures.store_jobs import KEY, job

CALLS: dict[str, Callable[[S3Store], Awaitable[Any]]] = {
    "check": lambda store: store.check(),
    "find": lambda store: store.find(KEY),
    "list_keys": lambda store: store.list_keys(),
    "begin": lambda store: store.begin(job(), 1_000_000),
    "discard_stale": lambda store: store.discard_stale(0),
}


async def refused(config: S3Config, match: str) -> None:
    """Every call fails with one sentence, which tells no secret."""
    for name, call in CALLS.items():
        with pytest.raises(StoreUnreachable, match=match) as caught:
            await call(S3Store(config))
        told = f"{caught.value.detail} {caught.value.hint}"
        assert SECRET not in told, name
        assert name == "check" or str(urlsplit(config.endpoint).netloc) not in told
        assert config.secret_access_key not in told
        assert "\n" not in told


async def test_missing_bucket_is_reported_in_one_sentence(s3_server: S3Server) -> None:
    await refused(s3_server.config(), "There is no bucket guanaco-")


async def test_wrong_credentials_are_said_in_a_sentence(s3_server: S3Server) -> None:
    if not s3_server.does_check:
        pytest.skip(f"{s3_server.name} checks no credentials.")
    config = s3_server.bucket()
    await refused(replace(config, secret_access_key="wrong-secret"), "refuses the platform's")
    await refused(replace(config, access_key_id="nobody-known"), "refuses the platform's")


async def test_a_server_that_is_down_is_said_in_a_sentence(s3_server: S3Server) -> None:
    config = s3_server.config(endpoint="http://127.0.0.1:9", attempts=1)
    await refused(config, "The artifact store does not answer")


class _Website(BaseHTTPRequestHandler):
    """Knows no page."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815  http.server chose these names

    def log_message(self, format: str, *args: object) -> None:
        return


async def test_server_that_is_not_s3_is_reported_in_one_sentence(moto: S3Server) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Website) as website:
        thread = Thread(target=website.serve_forever)
        thread.start()
        config = moto.config(endpoint=f"http://127.0.0.1:{website.server_port}")
        with pytest.raises(StoreUnreachable, match="answered 404"):
            await S3Store(config).check()
        website.shutdown()
        thread.join()


def test_answer_cut_in_its_headers_is_reported_in_one_sentence() -> None:
    """boto3 then leaves out what it did not read, such as the length of an object."""
    with (
        pytest.raises(StoreUnreachable, match="lacks what belongs to it"),
        translated("models", "a/manifest.json", may_miss=True),
    ):
        dict[str, int]()["ContentLength"]


def test_upload_with_a_cut_answer_is_reported_in_one_sentence(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(moto.bucket())
    monkeypatch.setattr(bucket.boto, "create_multipart_upload", lambda **_: {})
    with pytest.raises(StoreUnreachable, match="lacks what belongs to it") as caught:
        Uploads(bucket).create(KEY, 1)
    assert not caught.value.is_lasting


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:9", "https://127.0.0.1:9", "http://no.invalid"]
)
def test_job_with_an_unreadable_ticket_hides_its_url(place: str) -> None:
    signature = "0123abcd" * 8
    status, lines, errors = run(f"{place}/b/ticket.json?X-Amz-Signature={signature}")
    assert (status, lines[-1]["error"]) == (1, "store_unreachable")
    assert "ticket.json" not in f"{lines}{errors}"
    assert signature not in f"{lines}{errors}"
