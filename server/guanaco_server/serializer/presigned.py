"""Writing through presigned URLs, and checking what was stored by its MD5.

A presigned URL cannot carry a checksum that was not known when it was signed. What is left is the ETag: an MD5 of
what the server stored, unless it encrypts with a key of its owner's, and compared here. To a server whose ETag
is none, the body is sent once more and from then on with Content-MD5, which every S3 server knows and checks
itself. It is not sent otherwise, for it costs some servers a pass over the body more (rclone: a quarter of its time).

An MD5 costs us 1.7 s of a core for each GB, more than all else. So a caller with many bodies may have only some
checked: every load of an artifact verifies all of its SHA-256 anyway, and over TLS nothing changes on the way.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from typing import Any

import urllib3

from guanaco_server.serializer.failures import JobFailed

TRIES = 6
FIRST_DELAY_S = 0.5
TIMEOUT = urllib3.Timeout(connect=10.0, read=120.0)  # a server may sync a part before it answers
CONNECTIONS = 16
REFUSALS = (401, 403, 404)  # trying again does not help
MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


class Presigned:
    """Thread-safe."""

    def __init__(self) -> None:
        self._http = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, timeout=TIMEOUT)
        self._must_send_md5 = False

    def get(self, url: str) -> bytes | None:
        """None where there is nothing."""
        answer = self._http.request("GET", url)
        return answer.data if answer.status == 200 else None

    def put(self, url: str, content: Any, what: str, *, is_checked: bool = True) -> str:
        """The ETag. Tried again while the server is at fault or away; JobFailed when that does not help."""
        md5 = hashlib.md5(content, usedforsecurity=False).digest() if is_checked else None
        why = ""
        for tried in range(TRIES):
            if tried:
                time.sleep(FIRST_DELAY_S * 2 ** (tried - 1))
            try:
                answer = self._send(url, content, md5)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                why = type(error).__name__
                continue
            if answer.status == 200 and (md5 is None or _stored_md5(answer) in (None, md5.hex())):
                return str(answer.headers.get("ETag", ""))
            why = "it stored other bytes" if answer.status == 200 else f"status {answer.status}"
            if answer.status in REFUSALS:
                break
        raise JobFailed("store_unreachable", f"The artifact store did not take {what}: {why}.")

    def _send(self, url: str, content: Any, md5: bytes | None) -> urllib3.BaseHTTPResponse:
        sends_md5 = self._must_send_md5 and md5 is not None
        headers = {"Content-MD5": base64.b64encode(md5).decode()} if md5 and sends_md5 else {}
        answer = self._http.request("PUT", url, body=content, headers=headers)
        is_unknown = answer.status == 200 and _stored_md5(answer) is None
        if md5 and not sends_md5 and is_unknown:
            self._must_send_md5 = True
            return self._send(url, content, md5)
        return answer


def _stored_md5(answer: urllib3.BaseHTTPResponse) -> str | None:
    """None where the ETag is something else."""
    found = MD5_ETAG.fullmatch(answer.headers.get("ETag", ""))
    has_own_key = any(
        value.startswith("aws:") or "customer" in name.lower()
        for name, value in answer.headers.items()
        if name.lower().startswith("x-amz-server-side-encryption")
    )
    return found[1] if found and not has_own_key else None
