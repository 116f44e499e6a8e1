"""A stand-in for the Hugging Face Hub, on this machine, for the demo and the tests.

It speaks the part of the Hub's read protocol that huggingface_hub uses to look at a model repo and to fetch
its files, over real folders: ``root/org/name/…``. It is no Hub: one revision a repo, no accounts. A file
``.gated`` in a repo makes it a gated one, ``.private`` a private one; each holds the tokens that open the repo all the same.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"  # never a dot first, so that no request leaves the root
INFO_PATH = re.compile(rf"^/api/models/(?P<repo>{NAME}/{NAME})(?:/revision/(?P<revision>[^/]+))?$")
GATED, PRIVATE = ".gated", ".private"
MARKS = frozenset({GATED, PRIVATE})
FILE_PATH = re.compile(rf"^/(?P<repo>{NAME}/{NAME})/resolve/(?P<revision>[^/]+)/(?P<path>.+)$")
RANGE = re.compile(r"^bytes=(\d+)-(\d*)$")


class LocalHub:
    """Serves on a free loopback port while it is entered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._server = _HubServer(self)
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def before_answer(self, path: str) -> int | None:
        """A hook for tests, called in the request's thread: wait here, or give a status to fail with."""
        return None

    def send(self, connection: socket, path: Path, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end``, both included; tests override it with a worse network."""
        with path.open("rb") as file:
            while start <= end and (
                sent := os.sendfile(connection.fileno(), file.fileno(), start, end + 1 - start)
            ):
                start += sent


class _HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: LocalHub) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _HubHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is told on stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _HubHandler(BaseHTTPRequestHandler):
    server: _HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        if status := self.server.hub.before_answer(unquote(url.path)):
            self._refuse(status, "Failed")
        elif match := INFO_PATH.match(url.path):
            revision = match["revision"] and unquote(match["revision"])
            self._answer_info(match["repo"], revision, "blobs" in parse_qs(url.query))
        elif match := FILE_PATH.match(url.path):
            self._answer_file(match["repo"], unquote(match["revision"]), unquote(match["path"]))
        else:
            self._refuse(404, "EntryNotFound")

    def _answer_info(self, repo: str, revision: str | None, with_sizes: bool) -> None:
        folder = self.server.hub.root / repo
        if not self._is_there(folder, revision):
            return
        siblings = [
            {"rfilename": name} | ({"size": path.stat().st_size} if with_sizes else {})
            for name, path in _files(folder).items()
        ]
        body = {"id": repo, "modelId": repo, "sha": commit_of(folder)}
        access = {
            "private": (folder / PRIVATE).exists(),
            "gated": "manual" if (folder / GATED).exists() else False,
        }
        self._send(200, json.dumps(body | access | {"siblings": siblings}).encode())

    def _answer_file(self, repo: str, revision: str, name: str) -> None:
        folder = self.server.hub.root / repo
        if not self._is_readable(folder, revision):
            return
        path = _files(folder).get(name)
        if path is None:
            self._refuse(404, "EntryNotFound")
            return
        size = path.stat().st_size
        start, end = self._range(size)
        if start > end and size:
            self._refuse(416, "InvalidRange")
            return
        is_partial = self._is_partial(size)
        self.send_response(206 if is_partial else 200)
        self.send_header("ETag", f'"{_digest(path)}"')
        self.send_header("X-Repo-Commit", commit_of(folder))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start + 1))
        if is_partial:
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.flush()
            self.server.hub.send(self.connection, path, start, end)

    def _is_partial(self, size: int) -> bool:
        return "Range" in self.headers and size > 0

    def _is_readable(self, folder: Path, revision: str) -> bool:
        """Tell whether the request may read the files; everybody may list those of a gated repo."""
        if not self._is_there(folder, revision):
            return False
        if not self._opens(folder / GATED):
            self._refuse(403, "GatedRepo")
            return False
        return True

    def _opens(self, mark: Path) -> bool:
        """Tell whether the request has one of the tokens in the mark file, which has one on each line."""
        if not mark.exists():
            return True
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return given in mark.read_text().split()

    def _is_there(self, folder: Path, revision: str | None) -> bool:
        if not folder.is_dir() or not self._opens(folder / PRIVATE):
            self._refuse(404, "RepoNotFound")
        elif revision not in (None, "main", commit_of(folder)):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _range(self, size: int) -> tuple[int, int]:
        match = RANGE.match(self.headers.get("Range", ""))
        if match is None:
            return 0, size - 1
        return int(match[1]), min(int(match[2] or size - 1), size - 1)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def commit_of(folder: Path) -> str:
    """Return the repo's one commit: a hash of its files' names and contents."""
    digest = hashlib.sha1(usedforsecurity=False)
    for name, path in _files(folder).items():
        digest.update(f"{name}\0{_digest(path)}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    paths = (
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in MARKS
    )
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache
def _digest_of(path: Path, _changed_ns: int, _size: int) -> str:
    """Remembered, for every answer names it, and a model may be large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
