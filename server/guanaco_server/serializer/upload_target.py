"""Writes through presigned URLs: a multipart upload whose parts are made in any order.

Parts are sent as soon as they are complete, but none far ahead of the oldest part that is not sent yet. This bounds
the job's memory, and some servers (rclone, for one) keep early parts in theirs and refuse more than 256 MiB.
Buffers are used again, because fresh memory costs more than filling it.

A presigned URL cannot carry a checksum that was unknown when it was signed, so what was stored is checked by its
ETag: an MD5, unless the server encrypts with its owner's key. To a server whose ETag is no MD5, the body is sent
once more with Content-MD5, and so are all later ones; every S3 server checks that header itself. It is not sent
otherwise, because it costs some servers another pass over the body (rclone: a quarter of its time).

An MD5 costs 1.7 s of a core for each GB, more than everything else. So all parts of the first CHECKED_BYTES are
checked, and of the others every sixteenth: each load of an artifact verifies all of its SHA-256 anyway.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import urllib3

from guanaco_server.engine.artifacts.store_trust import UNTRUSTED, trusted_by
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.targets import ResumeLog
from guanaco_server.serializer.task import JOURNAL_NAME, Upload

WAKE_S = 0.5
MAX_AHEAD_BYTES = 192 * 1024**2
MIN_AHEAD_PARTS = 4
CHECKED_BYTES = 64 * 1024**2
CHECKED_EACH = 16


TRIES = 6
FIRST_DELAY_S = 0.5
TIMEOUT = urllib3.Timeout(connect=10.0, read=120.0)  # a server may sync a part before it answers
CONNECTIONS = 16
REFUSALS = (401, 403, 404)  # a retry does not help
MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')


class UploadTarget:
    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._presigned = Presigned()
        self.identity = upload.identity

    def read_journal(self) -> bytes | None:
        return self._presigned.get(self._upload.get_urls[JOURNAL_NAME])

    def save_journal(self, content: bytes) -> None:
        self.put_file(JOURNAL_NAME, content)

    def put_file(self, name: str, content: bytes) -> None:
        self._presigned.put(self._upload.put_urls[name], content, name)

    def open_tensors(self, total_bytes: int, resume_log: ResumeLog) -> PartsSink:
        return PartsSink(self._presigned, self._upload, total_bytes, resume_log)


@dataclass
class _OpenPart:
    buffer: bytearray
    missing_bytes: int


class PartsSink:
    def __init__(
        self, presigned: Presigned, upload: Upload, total_bytes: int, resume_log: ResumeLog
    ) -> None:
        self._presigned = presigned
        self._upload = upload
        self._total_bytes = total_bytes
        self._resume_log = resume_log
        self._lock = threading.Lock()
        self._has_sent = threading.Condition(self._lock)
        self._oldest = 0  # the first part that is not sent
        self._open: dict[int, _OpenPart] = {}
        self._free: list[bytearray] = []
        needed = -(-total_bytes // upload.part_bytes)
        if needed > len(upload.part_urls):
            raise JobFailed("serializer_died", "The artifact is larger than its ticket allows.")

    def is_written(self, start: int, end: int) -> bool:
        size = self._upload.part_bytes
        return all(
            number + 1 in self._resume_log.parts for number in range(start // size, -(-end // size))
        )

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        size = self._upload.part_bytes
        ahead_bytes = max(MAX_AHEAD_BYTES, MIN_AHEAD_PARTS * size)
        with self._has_sent:
            while end - self._find_oldest() * size > ahead_bytes and not is_stopped():
                self._has_sent.wait(WAKE_S)

    def _find_oldest(self) -> int:
        while self._oldest + 1 in self._resume_log.parts:
            self._oldest += 1
        return self._oldest

    def write(self, offset: int, data: memoryview) -> None:
        size = self._upload.part_bytes
        while data:
            index, at = divmod(offset, size)
            count = min(len(data), size - at)
            if index + 1 not in self._resume_log.parts:
                self._fill(index, at, data[:count])
            data, offset = data[count:], offset + count

    def finish(self) -> None:
        assert not self._open, "every byte of every part was written"

    def _fill(self, index: int, at: int, data: memoryview) -> None:
        with self._lock:
            part = self._open.get(index) or self._begin(index)
        part.buffer[at : at + len(data)] = data
        with self._lock:
            part.missing_bytes -= len(data)
            is_full = part.missing_bytes == 0
        if is_full:
            self._send(index, part)

    def _begin(self, index: int) -> _OpenPart:
        buffer = self._free.pop() if self._free else bytearray(self._upload.part_bytes)
        self._open[index] = part = _OpenPart(buffer, self._length(index))
        return part

    def _send(self, index: int, part: _OpenPart) -> None:
        content = memoryview(part.buffer)[: self._length(index)]
        etag = self._presigned.put(
            self._upload.part_urls[index],
            content,
            f"part {index + 1}",
            is_checked=index * self._upload.part_bytes < CHECKED_BYTES or index % CHECKED_EACH == 0,
        )
        self._resume_log.note_part(index + 1, etag)
        with self._lock:
            del self._open[index]
            self._free.append(part.buffer)
            self._has_sent.notify_all()
        self._resume_log.save_sometimes()

    def _length(self, index: int) -> int:
        size = self._upload.part_bytes
        return min(size, self._total_bytes - index * size)


class Presigned:
    """Thread-safe."""

    def __init__(self) -> None:
        self._http = urllib3.PoolManager(
            maxsize=CONNECTIONS, retries=False, timeout=TIMEOUT, ssl_context=trusted_by()
        )
        self._must_send_md5 = False

    def get(self, url: str) -> bytes | None:
        """Return None if there is nothing."""
        try:
            answer = self._http.request("GET", url)
        except (urllib3.exceptions.HTTPError, OSError) as error:  # whose text has the whole URL
            raise JobFailed(
                "store_unreachable",
                f"The artifact store did not give the journal: {why_unreachable(error)}.",
            ) from None
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
                why = why_unreachable(error)
                if isinstance(error, urllib3.exceptions.SSLError):
                    break
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


def why_unreachable(error: Exception) -> str:
    """Return the end of a sentence, without the URL that the error's own text has."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return UNTRUSTED[0].lower() + UNTRUSTED[1:-1]
    return type(error).__name__


def _stored_md5(answer: urllib3.BaseHTTPResponse) -> str | None:
    """Return None if the ETag is something else."""
    found = MD5_ETAG.fullmatch(answer.headers.get("ETag", ""))
    has_own_key = any(
        value.startswith("aws:") or "customer" in name.lower()
        for name, value in answer.headers.items()
        if name.lower().startswith("x-amz-server-side-encryption")
    )
    return found[1] if found and not has_own_key else None
