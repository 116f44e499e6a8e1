"""Streams from ranged requests to the tensors file, each byte once, in bounded memory.

Several workers take one run each (plan.py) and go through it in blocks of BLOCK_BYTES:

    read → refuse NaN → cast or merge where asked → SHA-256 and CRC-32 → write into the sink

A tensor's header is written with its first piece, or, where it has a CRC, after its last.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np

from guanaco_server.formats.safetensors_header import DTYPE_BYTES
from guanaco_server.formats.tensorizer_file import (
    crc32_combine,
    epilogue,
    is_checked,
    prologue,
    tensor_header,
)
from guanaco_server.serializer.repo_files import RepoFiles, Stream
from guanaco_server.serializer.reporting import Counter, JobFailed
from guanaco_server.serializer.targets import PieceFacts, ResumeLog, Sink
from guanaco_server.serializer.tensors.floats import from_float32, has_nan, to_float32
from guanaco_server.serializer.tensors.lora import LoraMatrices, LoraPair
from guanaco_server.serializer.tensors.plan import (
    PlannedTensor,
    Run,
    StreamPlan,
    TensorPiece,
    pieces_of,
)

BLOCK_BYTES = 1024**2  # fits the cores' caches, so that hashing reads what has just been read


class Matrices(Protocol):
    def load(self, pair: LoraPair) -> LoraMatrices: ...


class StreamingPass:
    """Runs once. ``workers`` is also the number of requests under way."""

    def __init__(
        self,
        plan: StreamPlan,
        files: RepoFiles,
        matrices: Matrices | None,
        sink: Sink,
        resume_log: ResumeLog,
        workers: int,
    ) -> None:
        self._plan = plan
        self._files = files
        self._matrices = matrices
        self._sink = sink
        self._resume_log = resume_log
        self._workers = workers
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._missing = Tally(piece.tensor for run in plan.runs for piece in run.pieces)
        self._counter = Counter("Streaming", sum(run.end - run.start for run in plan.runs))

    def run(self) -> None:
        """Write the whole file. Raise the error of the first worker that failed."""
        self._sink.write(0, memoryview(prologue(self._plan.layout)))
        waiting = self._take_up()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="stream") as pool:
            jobs = [pool.submit(self._stream, run) for run in waiting]
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            if any(job.exception() for job in done):
                self._is_stopped.set()
                pool.shutdown(cancel_futures=True)
        for job in done:
            job.result()
        end = epilogue()
        self._sink.write(self._plan.layout.total_bytes - len(end), memoryview(end))
        self._sink.finish()

    def facts(self, tensor: int) -> list[PieceFacts]:
        """Return the hashes of each of a tensor's pieces."""
        pieces = pieces_of(self._plan.tensors[tensor], tensor)
        return [self._resume_log.pieces[_key(piece)] for piece in pieces]

    def _take_up(self) -> list[Run]:
        """Return the runs that an earlier job has not finished."""
        waiting = []
        for run in self._plan.runs:
            if self._is_done(run):
                self._counter.add(run.end - run.start)
                for piece in run.pieces:
                    self._missing[piece.tensor] -= 1
            else:
                waiting.append(run)
        to_come = {piece.tensor for run in waiting for piece in run.pieces if piece.number == 0}
        for tensor in range(len(self._plan.tensors)):
            if self._missing[tensor] == 0:
                self._write_header(tensor, self._crc32(tensor))
            elif self._is_early(tensor) and tensor not in to_come:
                self._write_header(tensor, 0)  # its part may be one that was not sent
        return waiting

    def _is_early(self, tensor: int) -> bool:
        """Return whether the tensor's header can be written before its data."""
        return not is_checked(self._plan.layout.tensors[tensor].tensor)

    def _is_done(self, run: Run) -> bool:
        spans = [self._plan.piece_bytes(piece) for piece in run.pieces]
        is_known = all(_key(piece) in self._resume_log.pieces for piece in run.pieces)
        return is_known and self._sink.is_written(spans[0][0], spans[-1][1])

    def _stream(self, run: Run) -> None:
        _, end = self._plan.piece_bytes(run.pieces[-1])
        self._sink.wait_for_room(end, self._is_stopped.is_set)
        buffer = memoryview(bytearray(BLOCK_BYTES))
        with self._files.open(run.path, run.start, run.end) as stream:
            for piece in run.pieces:
                self._stream_piece(piece, stream, buffer)

    def _stream_piece(self, piece: TensorPiece, stream: Stream, buffer: memoryview) -> None:
        tensor = self._plan.tensors[piece.tensor]
        is_early = self._is_early(piece.tensor)
        if is_early and piece.number == 0:
            self._write_header(piece.tensor, 0)
        offset, _ = self._plan.piece_bytes(piece)
        sha256, crc32 = hashlib.sha256(), 0
        for block in self._blocks(tensor, piece, stream, buffer):
            sha256.update(block)
            crc32 = zlib.crc32(block, crc32)
            self._sink.write(offset, block)
            offset += len(block)
        self._resume_log.note_piece(_key(piece), PieceFacts(sha256=sha256.hexdigest(), crc32=crc32))
        with self._lock:
            self._missing[piece.tensor] -= 1
            is_last = self._missing[piece.tensor] == 0
        if is_last and not is_early:
            self._write_header(piece.tensor, self._crc32(piece.tensor))

    def _blocks(
        self, tensor: PlannedTensor, piece: TensorPiece, stream: Stream, buffer: memoryview
    ) -> Iterator[memoryview]:
        """Yield the piece's bytes as they are to be written."""
        item = DTYPE_BYTES[tensor.source_dtype]
        lora = self._matrices.load(tensor.lora) if tensor.lora and self._matrices else None
        for first in range(piece.first, piece.last, BLOCK_BYTES // item):
            if self._is_stopped.is_set():
                raise InterruptedError("another worker failed")
            count = min(BLOCK_BYTES // item, piece.last - first)
            block = buffer[: count * item]
            stream.read_exactly(block)
            self._counter.add(len(block))
            if has_nan(block, tensor.source_dtype):
                raise JobFailed(
                    "corrupt_weights",
                    f"The tensor {tensor.name[:80]!r} holds NaN (not a number), near its element {first:,}.",
                )
            yield _converted(block, tensor, lora, first)

    def _crc32(self, tensor: int) -> int:
        crc32 = 0
        for piece in pieces_of(self._plan.tensors[tensor], tensor):
            begin, end = self._plan.piece_bytes(piece)
            crc32 = crc32_combine(crc32, self._resume_log.pieces[_key(piece)].crc32, end - begin)
        return crc32

    def _write_header(self, tensor: int, crc32: int) -> None:
        placed = self._plan.layout.tensors[tensor]
        self._sink.write(placed.header_offset, memoryview(tensor_header(placed.tensor, crc32)))


def _key(piece: TensorPiece) -> str:
    return f"{piece.tensor}:{piece.number}"


def _converted(
    block: memoryview, tensor: PlannedTensor, lora: LoraMatrices | None, first: int
) -> memoryview:
    if tensor.dtype == tensor.source_dtype and lora is None:
        return block
    values = to_float32(block, tensor.source_dtype)
    if lora is not None:
        values = lora.add_to(values, first)
        if not np.isfinite(values).all():
            raise JobFailed(
                "corrupt_weights",
                f"The adapter makes {tensor.name[:80]!r} infinite: its scale is too large.",
            )
    try:
        return from_float32(values, tensor.dtype).data.cast("B")
    except OverflowError as error:
        raise JobFailed(
            "corrupt_weights", f"The tensor {tensor.name[:80]!r} cannot be {tensor.dtype}: {error}."
        ) from None
