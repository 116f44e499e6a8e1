"""Files of one repo at one commit, wherever they are read from (hub_files.py, local_files.py)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Stream(Protocol):
    def read_exactly(self, view: memoryview) -> None:
        """Fill the view with the bytes that come next."""
        ...


class RepoFiles(Protocol):
    """Thread-safe."""

    def size(self, path: str) -> int: ...

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """A range of a file, or all of it, in memory."""
        ...

    def open(self, path: str, start: int, end: int) -> AbstractContextManager[Stream]: ...
