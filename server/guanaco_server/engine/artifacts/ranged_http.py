"""Bytes from behind a URL, over one connection that is kept, and taken up again where it broke.

A store that is away is asked again until ``patience_s`` have passed without one byte. A model server is as patient as its
URLs live: whoever started it ends it earlier, by ``ready_timeout_s`` or Kubernetes' startup probe.

A presigned URL is a secret: no message and no log line here has more of it than the file's name.
"""

from __future__ import annotations

import itertools
import logging
import random
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from guanaco_server.engine.artifacts.errors import UnreachableArtifactError
from guanaco_server.engine.artifacts.store_trust import UNTRUSTED, trusted_by

TIMEOUT_S = 30
PAUSES_S = (
    0.2,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
)  # between attempts that got not one byte further; then the last again and again
PATIENCE_S = 3_600.0  # the shortest life of a URL
TOLD_AT = 4  # attempts, some 2 s: shorter outages are no news
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that another attempt may change


logger = logging.getLogger(__name__)


class ReadCancelled(Exception):
    """Nobody wants the bytes any more."""


class _PassingFault(OSError):
    """Worth another attempt."""


@dataclass(frozen=True)
class _Attempt:
    count: int
    pause_s: float | None


class RangedFile:
    """One reader's view of a file: ``begin`` a range, then ``fill`` buffers with its bytes in order.

    ``trusted`` vouches for the server; by default that is what the environment says (store_trust.py).
    """

    def __init__(
        self,
        url: str,
        name: str,
        stopped: threading.Event | None = None,
        trusted: ssl.SSLContext | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._parts = urlsplit(url)
        self._name = name
        self._stopped = stopped or threading.Event()
        self._trusted = trusted or trusted_by()
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None
        self._position = self._end = 0

    def begin(self, start: int, end: int) -> None:
        if self._response is not None:
            self.close()
        self._position, self._end = start, end

    def fill(self, view: memoryview) -> None:
        """Fill the whole view. UnreachableArtifactError if the bytes cannot be had."""
        while len(view):
            count = self._persist(view)
            self._position += count
            view = view[count:]
        if self._position == self._end:
            self._finish()

    def fetch(self, max_bytes: int) -> bytes:
        """Return a whole small file."""
        attempts = self._attempts()
        while True:
            try:
                data = self._request({}, expected=(200,)).read(max_bytes + 1)
                self.close()
                break
            except (OSError, HTTPException) as error:
                self._pause(next(attempts), error)
        if len(data) > max_bytes:
            raise UnreachableArtifactError(f"{self._name} is larger than {max_bytes:,} bytes.")
        return data

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _persist(self, view: memoryview) -> int:
        attempts = self._attempts()
        while not self._stopped.is_set():
            try:
                return self._read(view)
            except (OSError, HTTPException) as error:
                self._pause(next(attempts), error)
        raise ReadCancelled

    def _attempts(self) -> Iterator[_Attempt]:
        """Yield the attempts that failed, each with the pause after it; the last one has none."""
        began = time.monotonic()
        for count in itertools.count(1):
            is_over = count > len(PAUSES_S) and time.monotonic() - began >= self._patience_s
            yield _Attempt(count, None if is_over else PAUSES_S[min(count, len(PAUSES_S)) - 1])

    def _read(self, view: memoryview) -> int:
        if self._response is None:
            wanted = f"bytes={self._position}-{self._end - 1}"
            answer = self._request({"Range": wanted}, expected=(200, 206))
            if not self._is_what_was_asked(answer):
                raise UnreachableArtifactError(
                    f"The store gave other bytes of {self._name} than were asked for."
                )
        assert self._response is not None
        if count := self._response.readinto(view):
            return count
        raise _PassingFault("the connection ended early")

    def _is_what_was_asked(self, answer: HTTPResponse) -> bool:
        """Check Content-Range, because some servers (rclone) send a range with status 200. A whole file needs none."""
        if given := answer.headers.get("Content-Range"):
            return given.startswith(f"bytes {self._position}-")
        if self._position == 0 and answer.headers.get("Content-Length") == str(self._end):
            return True
        self.close()
        raise self._refusal(200)

    def _request(self, headers: dict[str, str], expected: tuple[int, ...]) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        target = f"{self._parts.path or '/'}{'?' if self._parts.query else ''}{self._parts.query}"
        self._connection.request("GET", target, headers=headers)
        self._response = response = self._connection.getresponse()
        if response.status not in expected:
            self.close()
            raise self._refusal(response.status)
        return response

    def _connect(self) -> HTTPConnection:
        if self._parts.scheme == "https":
            return HTTPSConnection(self._parts.netloc, timeout=TIMEOUT_S, context=self._trusted)
        return HTTPConnection(self._parts.netloc, timeout=TIMEOUT_S)

    def _refusal(self, status: int) -> Exception:
        if status in PASSING:
            return _PassingFault(f"the store answered {status}")
        if status == 403:
            why = "The store refuses the URL of {} (403): it has expired, or was never valid."
        elif status in (404, 410):
            why = "{} is not in the store (" + str(status) + ")."
        elif status == 200:
            why = "The store cannot give a range of {}."
        else:
            why = "The store answered " + str(status) + " for {}."
        return UnreachableArtifactError(why.format(self._name))

    def _pause(self, failed: _Attempt, error: Exception) -> None:
        self.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise UnreachableArtifactError(UNTRUSTED) from None
        why = str(error) if isinstance(error, _PassingFault) else type(error).__name__
        problem = f"{self._name} cannot be read from byte {self._position:,} on, after {failed.count} attempts: {why}"
        if failed.pause_s is None:
            raise UnreachableArtifactError(f"{problem}.") from None
        if failed.count == TOLD_AT:  # the deploy stage quotes lines that have the word
            logger.warning("ERROR: %s. Trying again for as long as this server may start.", problem)
        self._stopped.wait(failed.pause_s * random.uniform(0.5, 1.0))  # noqa: S311

    def _finish(self) -> None:
        """The range was read to its end: the connection can take the next request."""
        response, self._response = self._response, None
        if response is not None and not response.isclosed():
            response.read()
