"""The safetensors header, read strictly: a stranger wrote it.

    8 bytes    length N of the header, little-endian
    N bytes    JSON: {name: {"dtype", "shape", "data_offsets": [start, end]}, "__metadata__"?: {…}}
    the rest   the tensors' bytes, which the offsets must cover exactly once

Standard library only, for it runs in the platform (on ranged reads) and in the serializer (on files).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 16
MAX_NAME_CHARS = 1_024
MAX_DIGITS = 30  # more than any offset has

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's place; ``start`` and ``end`` count from the first byte after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)


def parse_length(prefix: bytes, file_bytes: int) -> int:
    """Return the header's length from a file's first 8 bytes; ValueError with one sentence."""
    if len(prefix) < LENGTH_BYTES:
        raise ValueError(f"the file has only {len(prefix)} bytes")
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header claims {length:,} bytes, more than the format allows")
    if LENGTH_BYTES + length > file_bytes:
        raise ValueError(f"its header claims {length:,} bytes but the file has {file_bytes:,}")
    return length


def parse_header(header_json: bytes, data_length: int) -> tuple[TensorInfo, ...]:
    """Return the tensors in the order of their offsets; ValueError with one sentence for anything not as it must be."""
    try:
        text = header_json.decode("utf-8")
        header = json.loads(text, object_pairs_hook=_without_duplicates, parse_int=_parse_int)
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise ValueError("its header is not valid JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    _require_strings(header.pop("__metadata__", {}))
    if len(header) > MAX_TENSORS:
        raise ValueError(f"its header lists {len(header):,} tensors, more than {MAX_TENSORS:,}")
    infos = sorted(
        (_parse_tensor(name, entry) for name, entry in header.items()),
        key=lambda info: (info.start, info.end),
    )
    _require_exact_cover(infos, data_length)
    return tuple(infos)


def read_header(path: Path) -> tuple[tuple[TensorInfo, ...], int]:
    """Return a file's tensors, and the offset at which their data begin."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = parse_length(file.read(LENGTH_BYTES), file_bytes)
        header_json = file.read(length)
    data_offset = LENGTH_BYTES + length
    return parse_header(header_json, file_bytes - data_offset), data_offset


def parameter_count(infos: Iterable[TensorInfo]) -> int:
    """Elements of every tensor together."""
    return sum(info.element_count for info in infos)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("its header names the same key twice")
    return entries


def _require_strings(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its __metadata__ is not an object of strings")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("its header has an impossible number")
    return int(digits)


def _parse_tensor(name: str, entry: Any) -> TensorInfo:
    shown = name[:80]
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"the tensor name {shown!r}… is too long")
    if any(
        "\ud800" <= char <= "\udfff" for char in name
    ):  # JSON lets them in, no encoder lets them out
        raise ValueError(f"the tensor name {shown!r} is not valid Unicode")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of tensor {shown!r} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {shown!r} has the unknown dtype {str(dtype)[:20]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"tensor {shown!r} has an impossible shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {shown!r} has impossible offsets")
    info = TensorInfo(name, dtype, tuple(shape), offsets[0], offsets[1])
    if info.end - info.start != info.element_count * DTYPE_BYTES[dtype]:
        raise ValueError(f"tensor {shown!r} has offsets that do not fit its shape and dtype")
    return info


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        for value in values
    )


def _require_exact_cover(infos: list[TensorInfo], data_length: int) -> None:
    position = 0
    for info in infos:
        if info.start != position:
            raise ValueError(f"tensor {info.name[:80]!r} overlaps another or leaves a gap")
        position = info.end
    if position != data_length:
        raise ValueError(
            f"its header promises {position:,} bytes of tensors but the file holds {data_length:,}"
        )
