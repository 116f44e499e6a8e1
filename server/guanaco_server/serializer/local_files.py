"""Weight files that were downloaded first, for a Hub that sends whole files only."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from guanaco_server.serializer.failures import JobFailed


class LocalFiles:
    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths

    def size(self, path: str) -> int:
        return self._paths[path].stat().st_size

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with self._paths[path].open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def open(self, path: str, start: int, end: int) -> FileStream:
        return FileStream(self._paths[path], start)


class FileStream:
    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._file.seek(start)

    def __enter__(self) -> FileStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read_exactly(self, view: memoryview) -> None:
        while view:
            count = self._file.readinto(view)
            if not count:
                raise JobFailed("corrupt_weights", f"{self._path.name} ends early.")
            view = view[count:]
