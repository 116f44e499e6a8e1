"""Messages between the platform and a child process: JSON after its length, and bytes as they are."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

LENGTH = struct.Struct(">I")
MAX_MESSAGE_BYTES = 64_000_000


def packed(content: Any) -> bytes:
    data = json.dumps(content).encode()
    return LENGTH.pack(len(data)) + data


def send(pipe: IO[bytes], content: Any) -> None:
    pipe.write(packed(content))
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Return what the other side sent. Raise ValueError if it ended in between, or sent too much, or what is no JSON."""
    (length,) = LENGTH.unpack(read_bytes(pipe, LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError("the other side sent too much")
    try:
        return json.loads(read_bytes(pipe, length))
    except RecursionError:  # a child that was taken over
        raise ValueError("the other side's message is nested too deep") from None


def read_bytes(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count) if count else b""
    if len(data) < count:
        raise ValueError("the other side has gone")
    return data
