"""A range of a file over HTTP, taken up again at the byte that it had reached when a connection breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import urllib3

from guanaco_server.serializer.failures import JobFailed

TRIES = 6  # in a row, without one byte: 16 s
FIRST_DELAY_S = 0.5
TIMEOUT = urllib3.Timeout(connect=10.0, read=30.0)

Get = Callable[[str, int, int], Any]  # one answer for a path and a range, its body unread


class RangeStream:
    """The bytes of a file from ``start`` up to ``end``, whatever happens to the connection."""

    def __init__(self, get: Get, path: str, start: int, end: int) -> None:
        self._get = get
        self._path = path
        self._at = start
        self._end = end
        self._answer: Any = None

    def __enter__(self) -> RangeStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop(reuse=self._at == self._end)

    def read_exactly(self, view: memoryview) -> None:
        """Fill the view; JobFailed when they stop coming."""
        filled, tries = 0, 0
        while filled < len(view):
            try:
                count = self._read_some(view[filled:])
                filled, tries = filled + count, 0
            except (urllib3.exceptions.HTTPError, OSError) as error:
                self._drop(reuse=False)
                tries += 1
                if tries == TRIES:
                    raise JobFailed(
                        "hub_unreachable",
                        f"The delivery of {self._path} stopped at byte {self._at:,}: {_shortly(error)}.",
                    ) from error
                time.sleep(FIRST_DELAY_S * 2 ** (tries - 1))

    def _read_some(self, view: memoryview) -> int:
        if self._answer is None:
            self._answer = self._get(self._path, self._at, self._end)
        count: int = self._answer.readinto(view)
        if count == 0:
            raise urllib3.exceptions.HTTPError("it ended early")
        self._at += count
        return count

    def _drop(self, *, reuse: bool) -> None:
        if self._answer is not None:
            if reuse:
                self._answer.release_conn()
            else:
                self._answer.close()
            self._answer = None


def _shortly(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
