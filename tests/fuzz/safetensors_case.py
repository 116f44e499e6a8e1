"""Says what one fuzz case means, for the harness and for the test that replays its corpus.

8 bytes    how many bytes follow the input in the imagined file (of which 40 bits count)
the rest   the file's beginning: 8 bytes of length, and the header
"""

from __future__ import annotations

import math

from guanaco_server.formats.safetensors_header import (
    DTYPE_BYTES,
    LENGTH_BYTES,
    TensorInfo,
    parse_header,
    parse_length,
)

SIZE_BYTES = 8
MOST_MISSING = 2**40 - 1


def encode(header: bytes, missing: int) -> bytes:
    """A case whose length fits its header."""
    length = len(header).to_bytes(LENGTH_BYTES, "little")
    return (missing & MOST_MISSING).to_bytes(SIZE_BYTES, "little") + length + header


def run(case: bytes) -> tuple[TensorInfo, ...] | None:
    """The tensors, None where the header is refused; AssertionError for a broken promise, anything else is a bug."""
    missing = int.from_bytes(case[:SIZE_BYTES], "little") & MOST_MISSING
    head = case[SIZE_BYTES:]
    file_bytes = len(head) + missing
    try:
        length = parse_length(head, file_bytes)
        data_length = file_bytes - LENGTH_BYTES - length
        infos = parse_header(head[LENGTH_BYTES : LENGTH_BYTES + length], data_length)
    except ValueError as error:
        message = str(error)
        assert message, "a refusal says why"
        assert len(message) < 600, "a refusal is one sentence"
        message.encode()  # and can be stored and sent
        return None
    _require_promises(infos, data_length)
    return infos


def _require_promises(infos: tuple[TensorInfo, ...], data_length: int) -> None:
    assert len({info.name for info in infos}) == len(infos), "names are unique"
    position = 0
    for info in infos:
        assert info.start == position, "no gap and no overlap"
        assert info.end - info.start == math.prod(info.shape) * DTYPE_BYTES[info.dtype], (
            "sizes agree"
        )
        assert all(type(size) is int and size >= 0 for size in info.shape), "sizes are counts"
        info.name.encode()
        position = info.end
    assert position == data_length, "every byte belongs to a tensor"
