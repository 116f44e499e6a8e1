"""Plans a tensors file from headers alone: what goes into it, and where each byte comes from.

weight files' headers → planned tensors, in the order of their bytes in the repo → layout of the file
                      → pieces (PIECE_BYTES of one tensor) → runs (one ranged request each)
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from guanaco_server.formats.manifest import PIECE_BYTES
from guanaco_server.formats.safetensors_header import DTYPE_BYTES
from guanaco_server.formats.tensorizer_file import FileTensor, TensorFileLayout, lay_out
from guanaco_server.serializer.repo_files import WeightFile
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.tensors.lora import LoraPair

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
WIDE_FLOATS = frozenset({"F64", "F32"})
CASTS = {"bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class PlannedTensor:
    """``start`` is the offset in the weight file at ``path``; what is written has ``dtype``, and ``lora`` added."""

    name: str
    shape: tuple[int, ...]
    path: str
    start: int
    source_dtype: str
    dtype: str
    lora: LoraPair | None = None

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.element_count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class TensorPiece:
    """A stretch of one tensor that is hashed as a whole; elements from ``first`` up to ``last``."""

    tensor: int
    number: int
    first: int
    last: int


@dataclass(frozen=True)
class Run:
    """Pieces whose bytes follow each other in one weight file, from ``start`` up to ``end``."""

    path: str
    start: int
    end: int
    pieces: tuple[TensorPiece, ...]


@dataclass(frozen=True)
class StreamPlan:
    tensors: tuple[PlannedTensor, ...]
    layout: TensorFileLayout
    runs: tuple[Run, ...]

    def digest(self) -> str:
        """Differs where the file would."""
        fields = [(t.name, t.dtype, t.shape, t.path, t.start) for t in self.tensors]
        return hashlib.sha256(json.dumps([PIECE_BYTES, fields]).encode()).hexdigest()

    def piece_bytes(self, piece: TensorPiece) -> tuple[int, int]:
        """Return where the piece's bytes are in the tensors file."""
        item = DTYPE_BYTES[self.tensors[piece.tensor].dtype]
        begin = self.layout.tensors[piece.tensor].data_offset
        return begin + piece.first * item, begin + piece.last * item


def make_plan(
    files: Sequence[WeightFile], cast_to: str | None, loras: dict[str, LoraPair]
) -> StreamPlan:
    """``cast_to`` is the dtype of every float, or None to keep them; ``loras`` are by tensor name."""
    tensors = tuple(_planned(files, cast_to, loras))
    try:
        layout = lay_out([FileTensor(t.name, t.dtype, t.shape, t.size_bytes) for t in tensors])
    except ValueError as error:
        raise JobFailed("corrupt_weights", f"The model cannot be stored: {error}.") from error
    return StreamPlan(tensors, layout, tuple(_runs(tensors)))


def chosen_cast(asked: str, files: Iterable[WeightFile], is_quantized: bool) -> str | None:
    """Return the dtype that floats become. ``auto`` halves checkpoints that are float32 throughout and keeps all others."""
    if asked not in ("auto", *CASTS):  # a newer platform asks an older image
        raise JobFailed(
            "serializer_died",
            f"The serializer's image is older than the platform: it does not know the dtype {asked}.",
        )
    floats = {info.dtype for file in files for info in file.infos} & FLOATS
    if is_quantized:  # scales and zero points belong to their weights
        return None
    if asked == "auto":
        return CASTS["bfloat16"] if floats and floats <= WIDE_FLOATS else None
    return CASTS[asked]


def _planned(
    files: Sequence[WeightFile], cast_to: str | None, loras: dict[str, LoraPair]
) -> Iterator[PlannedTensor]:
    seen: set[str] = set()
    for file in files:
        for info in file.infos:
            if info.name in seen:
                raise JobFailed(
                    "corrupt_weights", f"The tensor {info.name[:80]!r} is in more than one file."
                )
            seen.add(info.name)
            yield PlannedTensor(
                info.name,
                info.shape,
                file.path,
                file.data_offset + info.start,
                info.dtype,
                cast_to if cast_to and info.dtype in FLOATS else info.dtype,
                loras.get(info.name),
            )


def _runs(tensors: Sequence[PlannedTensor]) -> Iterator[Run]:
    """Small tensors share a request of at most PIECE_BYTES; one without bytes needs none, and has no pieces."""
    run: list[TensorPiece] = []
    path, start, end = "", 0, 0
    pieces = (pieces_of(tensor, index) for index, tensor in enumerate(tensors))
    for piece in itertools.chain.from_iterable(pieces):
        tensor = tensors[piece.tensor]
        item = DTYPE_BYTES[tensor.source_dtype]
        piece_start = tensor.start + piece.first * item
        piece_end = tensor.start + piece.last * item
        if run and (tensor.path != path or piece_start != end or piece_end - start > PIECE_BYTES):
            yield Run(path, start, end, tuple(run))
            run = []
        if not run:
            path, start = tensor.path, piece_start
        run.append(piece)
        end = piece_end
    if run:
        yield Run(path, start, end, tuple(run))


def pieces_of(tensor: PlannedTensor, index: int) -> Iterator[TensorPiece]:
    step = PIECE_BYTES // DTYPE_BYTES[tensor.dtype]
    for number, first in enumerate(range(0, tensor.element_count, step)):
        yield TensorPiece(index, number, first, min(first + step, tensor.element_count))
