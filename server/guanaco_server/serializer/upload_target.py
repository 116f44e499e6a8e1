"""A target behind presigned URLs: the parts of a multipart upload, made in any order.

Parts are sent as they become whole, but none far ahead of the oldest that is not: this bounds our memory, and
some servers (rclone, for one) keep what comes too early in theirs, and refuse more than 256 MiB of it.

The parts of the first CHECKED_BYTES are checked by their MD5 (presigned.py), and of the others every sixteenth.
Buffers are used again: fresh memory costs more than filling it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.journal import Journal
from guanaco_server.serializer.presigned import Presigned
from guanaco_server.serializer.ticket import JOURNAL_NAME, Upload

WAKE_S = 0.5
MAX_AHEAD_BYTES = 192 * 1024**2
MIN_AHEAD_PARTS = 4
CHECKED_BYTES = 64 * 1024**2
CHECKED_EACH = 16


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

    def open_tensors(self, total_bytes: int, journal: Journal) -> PartsSink:
        return PartsSink(self._presigned, self._upload, total_bytes, journal)


@dataclass
class _OpenPart:
    buffer: bytearray
    missing_bytes: int


class PartsSink:
    def __init__(
        self, presigned: Presigned, upload: Upload, total_bytes: int, journal: Journal
    ) -> None:
        self._presigned = presigned
        self._upload = upload
        self._total_bytes = total_bytes
        self._journal = journal
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
            number + 1 in self._journal.parts for number in range(start // size, -(-end // size))
        )

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        size = self._upload.part_bytes
        ahead_bytes = max(MAX_AHEAD_BYTES, MIN_AHEAD_PARTS * size)
        with self._has_sent:
            while end - self._find_oldest() * size > ahead_bytes and not is_stopped():
                self._has_sent.wait(WAKE_S)

    def _find_oldest(self) -> int:
        while self._oldest + 1 in self._journal.parts:
            self._oldest += 1
        return self._oldest

    def write(self, offset: int, data: memoryview) -> None:
        size = self._upload.part_bytes
        while data:
            index, at = divmod(offset, size)
            count = min(len(data), size - at)
            if index + 1 not in self._journal.parts:
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
        self._journal.note_part(index + 1, etag)
        with self._lock:
            del self._open[index]
            self._free.append(part.buffer)
            self._has_sent.notify_all()
        self._journal.save_sometimes()

    def _length(self, index: int) -> int:
        size = self._upload.part_bytes
        return min(size, self._total_bytes - index * size)
