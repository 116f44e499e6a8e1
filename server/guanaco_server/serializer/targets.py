"""Where a job writes: a folder of this machine, or an S3 server through presigned URLs.

A target takes small files whole, and the tensors file as a sink: bytes at any offset, in any order, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from guanaco_server.serializer.journal import Journal


class Sink(Protocol):
    """The tensors file being written. Thread-safe."""

    def is_written(self, start: int, end: int) -> bool:
        """Whether these bytes are safe already, so that writing them again can be left out."""
        ...

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        """Before one begins to write what ends at ``end``: until that is not too far ahead of what is still unwritten."""
        ...

    def write(self, offset: int, data: memoryview) -> None: ...

    def finish(self) -> None:
        """All bytes were written: make sure of them."""
        ...


class Target(Protocol):
    identity: str  # differs where bytes that were written before are gone

    def read_journal(self) -> bytes | None: ...

    def save_journal(self, content: bytes) -> None: ...

    def put_file(self, name: str, content: bytes) -> None:
        """A small file, whole or not at all."""
        ...

    def open_tensors(self, total_bytes: int, journal: Journal) -> Sink: ...
