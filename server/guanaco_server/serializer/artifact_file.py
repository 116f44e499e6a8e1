"""The tensors file of a published artifact, for reading it from beginning to end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3

from guanaco_server.serializer.local_files import FileStream
from guanaco_server.serializer.range_stream import TIMEOUT, RangeStream
from guanaco_server.serializer.repo_files import Stream


def open_artifact_file(url: str, size_bytes: int, name: str) -> AbstractContextManager[Stream]:
    """From a file URL or a presigned one, which no message shows."""
    if urlsplit(url).scheme == "file":
        return FileStream(Path(unquote(urlsplit(url).path)), 0)
    pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT)

    def get(_name: str, start: int, end: int) -> Any:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        answer = pool.request("GET", url, headers=headers, preload_content=False)
        if answer.status not in (200, 206):
            answer.close()
            raise urllib3.exceptions.HTTPError(f"status {answer.status}")
        return answer

    return RangeStream(get, name, 0, size_bytes)
