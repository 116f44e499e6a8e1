"""Tensors of a model.tensors file behind a URL: ranges read by several connections at once, hashed as they come.

    batch     a run of small tensors, or one large tensor: a stretch of the file, one buffer
    request   a batch, or a piece of a large tensor: one ranged GET, by one of the readers

Batches begin in file order, as long as those begun and not yet handed out have at most AHEAD_BYTES. Each block
is hashed, and given to the sink (the node's cache), while it is still in the processor's cache.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from guanaco_server.engine.artifacts.errors import DamagedArtifactError
from guanaco_server.engine.artifacts.local_tensors import EVERYTHING, Selection
from guanaco_server.engine.artifacts.ranged_http import RangedFile
from guanaco_server.formats.manifest import PIECE_BYTES, TENSORS_NAME, Manifest, TensorRecord

AHEAD_BYTES = 1024**3
READERS = 4
BLOCK_BYTES = 1024**2
MAX_GAP_BYTES = 256 * 1024  # read through rather than requested again
ALIGNMENT = 64  # a tensor lies in memory as it lies in the file, modulo this

Sink = Callable[[memoryview, int], None]


@dataclass(frozen=True)
class Batch:
    """Bytes ``start`` to ``end`` of the file, and the tensors among them."""

    start: int
    end: int
    records: tuple[TensorRecord, ...]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def requests(self) -> list[tuple[int, int]]:
        """Cut where a large tensor's pieces end, so that each has whole hashes."""
        cuts = [self.start]
        for record in self.records:
            cuts += [record.offset + end for _, end, _ in record.pieces() if end % PIECE_BYTES == 0]
        cuts.append(self.end)
        return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def read_remote(
    url: str,
    manifest: Manifest,
    selection: Selection = EVERYTHING,
    sink: Sink | None = None,
    readers: int = READERS,
    ahead_bytes: int = AHEAD_BYTES,
) -> Generator[tuple[TensorRecord, memoryview], None, None]:
    """Yield each wanted tensor and its verified bytes, in file order. The sink gets every byte of the file, from several threads."""
    records = selection.records(manifest)
    batches = plan(records, whole_bytes=manifest.tensors_bytes if sink else None)
    with closing(_Readers(url, readers, sink)) as threads:
        yield from _handed_out(batches, threads, ahead_bytes)


def plan(records: list[TensorRecord], whole_bytes: int | None = None) -> list[Batch]:
    """Batches of at most PIECE_BYTES, but for larger tensors; with ``whole_bytes`` they leave out no byte of the file."""
    batches: list[Batch] = []
    for record in records:
        end = record.offset + record.size_bytes
        last = batches[-1] if batches else None
        if last and end - last.start <= PIECE_BYTES and record.offset - last.end <= MAX_GAP_BYTES:
            batches[-1] = Batch(last.start, end, (*last.records, record))
            continue
        start = record.offset if whole_bytes is None else (last.end if last else 0)
        batches.append(Batch(start, end, (record,)))
    if whole_bytes is not None:
        last = batches.pop() if batches else Batch(0, 0, ())
        batches.append(Batch(last.start, whole_bytes, last.records))
    return batches


def _handed_out(
    batches: list[Batch], readers: _Readers, ahead_bytes: int
) -> Iterator[tuple[TensorRecord, memoryview]]:
    pool = BufferPool(ahead_bytes)
    ahead: deque[tuple[Batch, memoryview, list[Future[None]]]] = deque()
    begun = 0
    for batch in batches:
        while ahead and begun + batch.size_bytes > ahead_bytes:
            begun -= ahead[0][0].size_bytes
            yield from _tensors(*ahead.popleft())
        lead = batch.start % ALIGNMENT
        view = memoryview(pool.take(lead + batch.size_bytes))[lead : lead + batch.size_bytes]
        ahead.append((batch, view, readers.begin(batch, view)))
        begun += batch.size_bytes
        del view
    while ahead:
        yield from _tensors(*ahead.popleft())


def _tensors(
    batch: Batch, view: memoryview, reads: list[Future[None]]
) -> Iterator[tuple[TensorRecord, memoryview]]:
    for read in reads:
        read.result()
    for record in batch.records:
        start = record.offset - batch.start
        yield record, view[start : start + record.size_bytes]


class _Readers:
    """Threads with a connection each."""

    def __init__(self, url: str, count: int, sink: Sink | None) -> None:
        self._url = url
        self._sink = sink
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(count, "read")
        self._files: list[RangedFile] = []
        self._own = threading.local()

    def begin(self, batch: Batch, view: memoryview) -> list[Future[None]]:
        return [
            self._pool.submit(self._read, batch, view, start, end)
            for start, end in batch.requests()
        ]

    def close(self) -> None:
        """Returns when no thread touches a buffer any more."""
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files:
            file.close()

    def _read(self, batch: Batch, view: memoryview, start: int, end: int) -> None:
        file = self._file()
        file.begin(start, end)
        for first, last, record, digest in _spans(batch, start, end):
            hashed = hashlib.sha256()
            for position in range(first, last, BLOCK_BYTES):
                until = min(position + BLOCK_BYTES, last)
                block = view[position - batch.start : until - batch.start]
                file.fill(block)
                if record is not None:
                    hashed.update(block)
                if self._sink is not None:
                    self._sink(block, position)
            if record is not None and hashed.hexdigest() != digest:
                raise DamagedArtifactError(
                    f"The artifact is damaged: tensor {record.name} has another hash than was written."
                )

    def _file(self) -> RangedFile:
        if not hasattr(self._own, "file"):
            self._own.file = RangedFile(self._url, TENSORS_NAME, self._stopped)
            self._files.append(self._own.file)
        file: RangedFile = self._own.file
        return file


def _spans(
    batch: Batch, start: int, end: int
) -> Iterator[tuple[int, int, TensorRecord | None, str]]:
    """Yield the pieces between start and end, and what lies between them (without a record)."""
    position = start
    for record in batch.records:
        for first, last, digest in record.pieces():
            first, last = first + record.offset, last + record.offset
            if first < start or last > end:
                continue
            if position < first:
                yield position, first, None, ""
            yield first, last, record, digest
            position = last
    if position < end:
        yield position, end, None, ""


GRAIN_BYTES = 2 * 1024**2  # one huge page


class BufferPool:
    """Buffers of one thread's choosing. Keeps at most ``idle_bytes`` that nobody uses."""

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._buffers: list[mmap.mmap] = []

    def take(self, size_bytes: int) -> mmap.mmap:
        """Return a buffer of at least that size; its bytes are anything."""
        idle = [buffer for buffer in self._buffers if _is_released(buffer)]
        fitting = [b for b in idle if size_bytes <= len(b) <= 2 * size_bytes + GRAIN_BYTES]
        if fitting:
            chosen = min(fitting, key=len)
            self._buffers.remove(chosen)
        else:
            self._trim(idle, self._idle_bytes - size_bytes)
            chosen = _new_buffer(size_bytes)
        self._buffers.append(chosen)  # the latest used is last
        return chosen

    def _trim(self, idle: list[mmap.mmap], kept_bytes: int) -> None:
        """Give the longest unused back to the kernel."""
        total = sum(len(buffer) for buffer in idle)
        for buffer in idle:
            if total <= kept_bytes:
                return
            total -= len(buffer)
            self._buffers.remove(buffer)
            buffer.close()


def _new_buffer(size_bytes: int) -> mmap.mmap:
    rounded = -(-max(size_bytes, 1) // GRAIN_BYTES) * GRAIN_BYTES
    buffer = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def _is_released(buffer: mmap.mmap) -> bool:
    """Return whether nobody uses the buffer. A mapping refuses to be resized, even to its own size, while it is exported."""
    try:
        buffer.resize(len(buffer))
    except BufferError:
        return False
    return True
