"""Floating point in the dtypes of checkpoints, with numpy, which lacks bfloat16: NaN checks and exact casts.

All rounding is to nearest, ties to even, as torch's ``Tensor.to`` does.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

_kept = threading.local()

Bytes = memoryview
Array = NDArray[Any]

# The bits without the sign, and the largest of them that is no NaN.
NAN_BITS: dict[str, tuple[Any, int]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F80_0000),
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F8_E4M3": (np.uint8, 0x7E),
    "F8_E5M2": (np.uint8, 0x7C),
}
NUMPY_FLOATS = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def has_nan(data: Bytes, dtype: str) -> bool:
    """Tell whether any element is not a number; False for integers."""
    if dtype not in NAN_BITS or not len(data):
        return False
    kind, largest = NAN_BITS[dtype]
    bits = np.frombuffer(data, kind)
    magnitudes = np.bitwise_and(bits, kind(np.iinfo(kind).max >> 1), out=_scratch(len(bits), kind))
    return int(magnitudes.max()) > largest


def _scratch(count: int, kind: Any) -> Array:
    """Memory of this thread that is used again: fresh memory costs more than what is done with it."""
    size = count * np.dtype(kind).itemsize
    if len(getattr(_kept, "bytes", b"")) < size:
        _kept.bytes = bytearray(size)
    return np.frombuffer(_kept.bytes, kind, count)


def to_float32(data: Bytes, dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, NUMPY_FLOATS[dtype]).astype(np.float32)


def from_float32(values: NDArray[np.float32], dtype: str) -> Array:
    """Return an array whose bytes are the values in ``dtype``; OverflowError where float16 cannot hold one."""
    if dtype == "BF16":
        return _to_bfloat16(values)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if np.isinf(halves).any() and not np.array_equal(np.isinf(halves), np.isinf(values)):
            raise OverflowError("a value is outside float16's range of ±65,504")
        return halves
    return values.astype(NUMPY_FLOATS[dtype])


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Infinities stay what they are, NaN has been refused before; half a unit is added, and the low bits fall away."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    carry = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + carry) >> np.uint32(16)).astype(np.uint16)
