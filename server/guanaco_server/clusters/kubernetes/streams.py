"""Answers without an end, line by line: a thread reads each, for the official client knows no asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import urllib3

from guanaco.errors import ClusterUnreachable

CHUNK_BYTES = 65_536
WAITING_CHUNKS = 64  # a reader that is slower than the server makes the server wait
LINE_BYTES = (
    8_388_608  # an object of the API has at most 3 MiB; the rest of a longer line is dropped
)

Begin = Callable[[], urllib3.BaseHTTPResponse]


async def read_lines(begin: Begin) -> AsyncGenerator[bytes, None]:
    """Whole lines as they come; ClusterUnreachable where they break off. Closing this ends the connection."""
    reading = _Reading(begin, asyncio.get_running_loop())
    rest = b""
    try:
        while data := await reading.next():
            *whole, rest = (rest + data).split(b"\n")
            rest = rest[:LINE_BYTES]
            for line in whole:
                yield line
        if rest:
            yield rest
    finally:
        reading.stop()


class _Reading:
    """The daemon thread holds up nobody who wants to end."""

    def __init__(self, begin: Begin, loop: asyncio.AbstractEventLoop) -> None:
        self._begin = begin
        self._loop = loop
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(WAITING_CHUNKS)
        self._is_stopped = False
        self._answer: urllib3.BaseHTTPResponse | None = None
        threading.Thread(target=self._read, name="kubernetes-stream", daemon=True).start()

    async def next(self) -> bytes:
        """Empty at the end."""
        item = await self._chunks.get()
        self._room.release()
        if isinstance(item, Exception):
            raise item
        return item

    def stop(self) -> None:
        self._is_stopped = True
        self._room.release()
        if isinstance(self._answer, urllib3.HTTPResponse):
            with suppress(ValueError, RuntimeError, OSError):  # it has ended already
                self._answer.shutdown()

    def _read(self) -> None:
        try:
            self._answer = answer = self._begin()
            try:
                while not self._is_stopped:
                    data = answer.read1(CHUNK_BYTES)
                    self._give(data)
                    if not data:
                        return
            finally:
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self._give(ClusterUnreachable(f"The Kubernetes API broke off: {type(error).__name__}."))
        except Exception as error:  # noqa: BLE001 - the thread's outermost frame: the reader must hear of it
            self._give(error)

    def _give(self, item: bytes | Exception) -> None:
        self._room.acquire()
        with suppress(RuntimeError):  # the loop has ended, and with it the reader
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, item)
