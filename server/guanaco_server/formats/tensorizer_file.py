"""The tensorizer file format, data version 2, laid out before any byte of a tensor is known.

    5 bytes    |TZR|
    60 bytes   version, flags, size of all tensors, number of tensors
    8 bytes    length of the index, then the index: every tensor's name, dtype, shape and place
    then for each tensor a header, with the CRC-32 of header and data unless it is large, and the data
    8 bytes    zero: no more headers

tensorizer's own writer wants a whole tensor in memory, and a file that it can go back in. Here every place
follows from names, dtypes and shapes alone, so that the parts of a file can be made in any order, at once, by
whoever has the bytes. Only a tensor's header would wait for its data's CRC, and with it the part that it is in:
so tensors over MAX_CHECKED_BYTES have none (readers take that), and what waits is never far behind. The index is
as long as it must be, where tensorizer reserves 256 KiB. Field by field as in tensorizer 2.12's ``serialization.py``, whose reader is the
judge in the tests.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"|TZR|"
VERSION = 2  # the first that has dtypes which numpy lacks
PARAMETER = 0
CRC32 = 0
MAX_DIMENSION = 2**32 - 1
MAX_CHECKED_BYTES = 64 * 1024**2
STRUCTURED_NAME = "\x1e"  # a name that begins with it is a path in JSON
FILE_HEADER = struct.Struct("<I32sQ8xQ")
LENGTH = struct.Struct("<Q")

# tensorizer's spelling: numpy's where numpy has the type, else as many opaque bytes and torch's name.
DTYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "F8_E4M3": "|V1\0torch.float8_e4m3fn",
    "F8_E5M2": "|V1\0torch.float8_e5m2",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<V2\0torch.bfloat16",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}


@dataclass(frozen=True)
class FileTensor:
    """``dtype`` as safetensors spells it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class PlacedTensor:
    tensor: FileTensor
    header_offset: int
    data_offset: int

    @property
    def end(self) -> int:
        return self.data_offset + self.tensor.size_bytes


@dataclass(frozen=True)
class TensorFileLayout:
    """The offsets of everything in a file of ``total_bytes``."""

    tensors: tuple[PlacedTensor, ...]
    prologue_bytes: int
    total_bytes: int


def lay_out(tensors: Sequence[FileTensor]) -> TensorFileLayout:
    """ValueError, one sentence, for a tensor that the format cannot hold."""
    for tensor in tensors:
        _require_storable(tensor)
    index_bytes = sum(len(_index_entry(PlacedTensor(tensor, 0, 0))) for tensor in tensors)
    offset = prologue_bytes = len(MAGIC) + FILE_HEADER.size + LENGTH.size + index_bytes
    placed = []
    for tensor in tensors:
        data_offset = offset + len(_header(tensor, 0))
        placed.append(PlacedTensor(tensor, offset, data_offset))
        offset = placed[-1].end
    return TensorFileLayout(tuple(placed), prologue_bytes, offset + LENGTH.size)


def prologue(layout: TensorFileLayout) -> bytes:
    """Return what comes before the first tensor's header."""
    index = b"".join(_index_entry(placed) for placed in layout.tensors)
    data_bytes = sum(placed.tensor.size_bytes for placed in layout.tensors)
    file_header = FILE_HEADER.pack(VERSION, bytes(32), data_bytes, len(layout.tensors))
    return MAGIC + file_header + LENGTH.pack(len(index)) + index


def epilogue() -> bytes:
    return LENGTH.pack(0)


def is_checked(tensor: FileTensor) -> bool:
    """Return whether the tensor's header has a CRC."""
    return tensor.size_bytes <= MAX_CHECKED_BYTES


def tensor_header(tensor: FileTensor, data_crc32: int) -> bytes:
    """Return the bytes before a tensor's data; the CRC covers the header with a zero in the CRC's place, then the data."""
    if not is_checked(tensor):
        return _header(tensor, 0)
    blank = zlib.crc32(_header(tensor, 0))
    return _header(tensor, crc32_combine(blank, data_crc32, tensor.size_bytes))


def crc32_combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two byte strings after each other from the CRC-32 of each (as zlib's crc32_combine)."""
    return _multiply(_power_of_x(8 * second_bytes), first) ^ second


def _header(tensor: FileTensor, crc32: int) -> bytes:
    name, dtype = tensor.name.encode(), DTYPES[tensor.dtype].encode()
    described = b"".join(
        (
            struct.pack("<HBH", 0, PARAMETER, len(name)),
            name,
            struct.pack("<B", len(dtype)),
            dtype,
            struct.pack(f"<B{len(tensor.shape)}I", len(tensor.shape), *tensor.shape),
            _hashes(tensor, crc32),
            struct.pack("<q", tensor.size_bytes),
        )
    )
    return LENGTH.pack(LENGTH.size + len(described)) + described


def _hashes(tensor: FileTensor, crc32: int) -> bytes:
    """Return the length of what follows, how many there are, and for each its kind, its length, and the hash."""
    if not is_checked(tensor):
        return struct.pack("<HB", 1, 0)
    return struct.pack("<HBBBI", 7, 1, CRC32, 4, crc32)


def _index_entry(placed: PlacedTensor) -> bytes:
    tensor = placed.tensor
    name, dtype = tensor.name.encode(), DTYPES[tensor.dtype].encode()
    return b"".join(
        (
            struct.pack("<H", len(name)),
            name,
            struct.pack("<BB", PARAMETER, len(dtype)),
            dtype,
            struct.pack(f"<B{len(tensor.shape)}I", len(tensor.shape), *tensor.shape),
            struct.pack("<QQQ", placed.header_offset, placed.data_offset, tensor.size_bytes),
        )
    )


def _require_storable(tensor: FileTensor) -> None:
    shown = tensor.name[:80]
    if not tensor.name or tensor.name.startswith(STRUCTURED_NAME):
        raise ValueError(f"the tensor name {shown!r} is not one that an artifact can hold")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"tensor {shown!r} has the dtype {tensor.dtype}, which cannot be stored")
    if any(size > MAX_DIMENSION for size in tensor.shape):
        raise ValueError(f"tensor {shown!r} has a dimension over {MAX_DIMENSION:,}")


POLYNOMIAL = 0xEDB88320  # CRC-32's, its bits reversed: x^0 is the highest


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's."""
    product, bit = 0, 1 << 31
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def _power_of_x(exponent: int) -> int:
    power, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        exponent >>= 1
    return power
