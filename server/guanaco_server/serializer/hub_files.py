"""Files of one Hub repo at a pinned commit, by ranged requests.

huggingface_hub says where a file's bytes are (a CDN's signed URL, mostly) and adds the token; urllib3 fetches
them, for it reads into a buffer that is used again: 2.8 GB/s from loopback, where huggingface_hub's own client
reaches 0.4 (docs/benchmarks.md). A connection that breaks is taken up again at the byte that it had reached.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3

from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.range_stream import TIMEOUT, RangeStream

EXPIRED = (401, 403, 410)  # what CDNs say to a signed URL that is too old
CONNECTIONS = 16


class RangesRefused(Exception):  # a fact about the server, which job.py acts on
    """The server sends whole files only."""


@dataclass
class Place:
    """Where a file's bytes are for now."""

    url: str
    headers: dict[str, str]
    size_bytes: int


class HubFiles:
    """Thread-safe. The token, if any, is read from HF_TOKEN."""

    def __init__(self, endpoint: str, repo: str, commit: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._repo = repo
        self._commit = commit
        self._places: dict[str, Place] = {}
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, timeout=TIMEOUT)

    def size(self, path: str) -> int:
        return self._place(path).size_bytes

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """A whole file, or a range of it, in memory."""
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
        place = self._place(path)
        is_whole = start == 0 and end == place.size_bytes
        headers = place.headers | ({} if is_whole else {"Range": f"bytes={start}-{end - 1}"})
        answer = self._pool.request("GET", place.url, headers=headers, preload_content=False)
        if answer.status == (200 if is_whole else 206):
            return answer
        answer.close()
        if answer.status == 200:
            raise RangesRefused
        if answer.status in EXPIRED:
            self._places.pop(path, None)
        raise urllib3.exceptions.HTTPError(f"status {answer.status}")

    def _place(self, path: str) -> Place:
        if path not in self._places:
            self._places[path] = self._locate(path)
        return self._places[path]

    def _locate(self, path: str) -> Place:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils._headers import build_hf_headers

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
        return Place(found.location, kept | {"Accept-Encoding": "identity"}, found.size)
