"""Reads the files of one repo at one commit: by ranges from the Hub, or from a folder that they were downloaded to.

    HubFiles    ranged requests; a connection that breaks is resumed at the byte that it had reached
    LocalFiles  for a Hub that sends whole files only: ``download`` fetches them first

huggingface_hub says where a file's bytes are (usually a CDN's signed URL) and adds the token. urllib3 fetches them,
because it reads into a buffer that is used again: 2.8 GB/s from loopback, where huggingface_hub's own client reaches
0.4 (docs/benchmarks.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import urllib3

from guanaco_server.formats.safetensors_header import (
    LENGTH_BYTES,
    TensorInfo,
    parse_header,
    parse_length,
)
from guanaco_server.serializer.reporting import Counter, JobFailed, say, watching

FIRST_READ_BYTES = 65_536  # holds most headers, so that one request is enough
EXPIRED = (401, 403, 410)  # what CDNs say to a signed URL that is too old
CONNECTIONS = 16
TRIES = 6  # in a row, without one byte: 16 s
FIRST_DELAY_S = 0.5
TIMEOUT = urllib3.Timeout(connect=10.0, read=30.0)
TRIES_FOR_SIZE_S = 20.0


class Stream(Protocol):
    def read_exactly(self, view: memoryview) -> None:
        """Fill the view with the bytes that come next."""
        ...


class RepoFiles(Protocol):
    """Thread-safe."""

    def size(self, path: str) -> int: ...

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of a file, or all of it, in memory."""
        ...

    def open(self, path: str, start: int, end: int) -> AbstractContextManager[Stream]: ...


@dataclass(frozen=True)
class WeightFile:
    """``data_offset`` is where the tensors' bytes begin."""

    path: str
    infos: tuple[TensorInfo, ...]
    data_offset: int


def read_header(files: RepoFiles, path: str) -> WeightFile:
    """JobFailed for anything not as the format wants it."""
    size = files.size(path)
    head = files.read(path, 0, min(size, FIRST_READ_BYTES))
    try:
        data_offset = LENGTH_BYTES + parse_length(head, size)
        if len(head) < data_offset:
            head += files.read(path, len(head), data_offset)
        infos = parse_header(head[LENGTH_BYTES:data_offset], size - data_offset)
    except ValueError as error:
        raise JobFailed(
            "corrupt_weights", f"{path} is not a valid safetensors file: {error}."
        ) from error
    return WeightFile(path, infos, data_offset)


class RangesRefused(Exception):  # a fact about the server, which job.py acts on
    """The server sends whole files only."""


@dataclass
class FileLocation:
    """The URL that a file's bytes have for now."""

    url: str
    headers: dict[str, str]
    size_bytes: int


class HubFiles:
    """Thread-safe. The token, if any, is read from HF_TOKEN."""

    def __init__(self, endpoint: str, repo: str, commit: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._repo = repo
        self._commit = commit
        self._locations: dict[str, FileLocation] = {}
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, timeout=TIMEOUT)

    def size(self, path: str) -> int:
        return self._location(path).size_bytes

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a whole file, or a range of it, in memory."""
        end = self.size(path) if end is None else end
        data = bytearray(end - start)
        if data:
            with self.open(path, start, end) as stream:
                stream.read_exactly(memoryview(data))
        return bytes(data)

    def open(self, path: str, start: int, end: int) -> RangeStream:
        return RangeStream(self.get, path, start, end)

    def get(self, path: str, start: int, end: int) -> Any:
        """One answer, its body unread; urllib3's errors and RangesRefused come through. A whole file needs no range."""
        location = self._location(path)
        is_whole = start == 0 and end == location.size_bytes
        headers = location.headers | ({} if is_whole else {"Range": f"bytes={start}-{end - 1}"})
        answer = self._pool.request("GET", location.url, headers=headers, preload_content=False)
        if answer.status == (200 if is_whole else 206):
            return answer
        answer.close()
        if answer.status == 200:
            raise RangesRefused
        if answer.status in EXPIRED:
            self._locations.pop(path, None)
        raise urllib3.exceptions.HTTPError(f"status {answer.status}")

    def _location(self, path: str) -> FileLocation:
        if path not in self._locations:
            self._locations[path] = self._locate(path)
        return self._locations[path]

    def _locate(self, path: str) -> FileLocation:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self._repo, path, revision=self._commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=os.environ.get("HF_TOKEN") or False)
        found = get_hf_file_metadata(url, headers=headers, timeout=20.0)
        if found.commit_hash not in (None, self._commit) or found.size is None:
            raise JobFailed(
                "hub_unreachable",
                f"The Hub sent {path} of another commit than {self._commit[:8]}, or did not say how long it is.",
            )
        is_the_hub = urlsplit(found.location)[:2] == urlsplit(self._endpoint)[:2]
        kept = dict(headers) if is_the_hub else {}  # the token is the Hub's, not its CDN's
        return FileLocation(found.location, kept | {"Accept-Encoding": "identity"}, found.size)


Get = Callable[[str, int, int], Any]  # one answer for a path and a range, its body unread


class RangeStream:
    """The bytes of a file from ``start`` up to ``end``, whatever happens to the connection."""

    def __init__(self, get: Get, path: str, start: int, end: int) -> None:
        self._get = get
        self._path = path
        self._at = start
        self._end = end
        self._answer: Any = None

    def __enter__(self) -> RangeStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop(reuse=self._at == self._end)

    def read_exactly(self, view: memoryview) -> None:
        """Fill the view; JobFailed when they stop coming."""
        filled, tries = 0, 0
        while filled < len(view):
            try:
                count = self._read_some(view[filled:])
                filled, tries = filled + count, 0
            except (urllib3.exceptions.HTTPError, OSError) as error:
                self._drop(reuse=False)
                tries += 1
                if tries == TRIES:
                    raise JobFailed(
                        "hub_unreachable",
                        f"The delivery of {self._path} stopped at byte {self._at:,}: {_shortly(error)}.",
                    ) from error
                time.sleep(FIRST_DELAY_S * 2 ** (tries - 1))

    def _read_some(self, view: memoryview) -> int:
        if self._answer is None:
            self._answer = self._get(self._path, self._at, self._end)
        count: int = self._answer.readinto(view)
        if count == 0:
            raise urllib3.exceptions.HTTPError("it ended early")
        self._at += count
        return count

    def _drop(self, *, reuse: bool) -> None:
        if self._answer is not None:
            if reuse:
                self._answer.release_conn()
            else:
                self._answer.close()
            self._answer = None


def _shortly(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")


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


def prepare(scratch: Path) -> None:
    """Import huggingface_hub such that nothing lands outside the scratch folder."""
    os.environ["HF_HOME"] = str(scratch / "hf")
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_DISABLE_XET"] = "1"  # it resolves names by itself, which the job may not
    os.environ.pop("HF_HUB_OFFLINE", None)
    import huggingface_hub.file_download  # noqa: F401 - it reads the environment now


def download(
    repo: str, commit: str, paths: Sequence[str], *, endpoint: str, folder: Path
) -> dict[str, Path]:
    """Fetch the files, saying how far it is; the token, if any, is read from HF_TOKEN."""
    from huggingface_hub import hf_hub_download

    def fetch(path: str, *, dry_run: bool) -> object:
        return hf_hub_download(
            repo,
            path,
            revision=commit,
            endpoint=endpoint,
            local_dir=folder,
            token=os.environ.get("HF_TOKEN") or False,
            etag_timeout=TRIES_FOR_SIZE_S,
            dry_run=dry_run,
        )

    total = sum(getattr(fetch(path, dry_run=True), "file_size", None) or 0 for path in paths)
    say(f"Downloading {len(paths)} files, {total / 1e6:,.1f} MB, of {repo} at {commit[:8]}.")
    with watching(Counter("Downloading", total), lambda: _size(folder)):
        for path in paths:
            fetch(path, dry_run=False)
    return {path: folder / path for path in paths}


def _size(folder: Path) -> int:
    """Count the bytes on disk, including unfinished files. A file may vanish as it is renamed."""
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(root) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return size
