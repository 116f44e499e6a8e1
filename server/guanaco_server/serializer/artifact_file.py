"""The tensors file of a published artifact, for reading it from beginning to end, as a model server would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from guanaco_server.engine.ranged_http import RangedFile
from guanaco_server.serializer.local_files import FileStream
from guanaco_server.serializer.repo_files import Stream


@contextmanager
def open_artifact_file(url: str, size_bytes: int, name: str) -> Iterator[Stream]:
    """From a file URL or a presigned one, which no message shows."""
    if urlsplit(url).scheme == "file":
        with FileStream(Path(unquote(urlsplit(url).path)), 0) as stream:
            yield stream
        return
    with closing(RangedFile(url, name)) as file:
        file.begin(0, size_bytes)
        yield _Remote(file)


class _Remote:
    def __init__(self, file: RangedFile) -> None:
        self._file = file

    def read_exactly(self, view: memoryview) -> None:
        self._file.fill(view)
