"""Base images are pinned by the digest that their registry has; a registry on this machine stands for Docker Hub."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "pin-images"
DIGEST = "sha256:" + "5a" * 32


class Registry(BaseHTTPRequestHandler):
    """Asks for a token first, as Docker Hub does, and gives it to anybody."""

    def do_GET(self) -> None:
        assert self.path == "/token?service=registry&scope=repository%3Apython%3Apull"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "anybody"}')

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer anybody":
            realm = f"http://127.0.0.1:{self.server.server_port}/token"  # type: ignore[attr-defined]
            self.send_response(401)
            self.send_header(
                "WWW-Authenticate",
                f'Bearer realm="{realm}",service="registry",scope="repository:python:pull"',
            )
        elif self.path == "/v2/python/manifests/3.11.13":
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Advisories(BaseHTTPRequestHandler):
    """Stands for OSV: knows one advisory, about @b/c."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        results = [
            {"vulns": [{"id": "GHSA-1"}]} if one["package"]["name"] == "@b/c" else {}
            for one in asked
        ]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": results}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def pin(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, path], capture_output=True, text=True, check=False
    )


def test_a_base_is_pinned_and_pinned_anew(tmp_path: Path, registry: str) -> None:
    path = tmp_path / "x.Dockerfile"
    older = f"@sha256:{'0' * 64}"
    path.write_text(
        f"FROM {registry}/python:3.11.13 AS build\nFROM {registry}/python:3.11.13{older}\nFROM build\n"
    )
    assert pin(path).returncode == 0
    assert path.read_text() == (
        f"FROM {registry}/python:3.11.13@{DIGEST} AS build\n"
        f"FROM {registry}/python:3.11.13@{DIGEST}\nFROM build\n"
    )


def test_unknown_registry_base_stays_as_it_is(tmp_path: Path, registry: str) -> None:
    path = tmp_path / "x.Dockerfile"
    path.write_text(f"FROM {registry}/python:3.11.99\n")
    done = pin(path)
    assert done.returncode == 1
    assert f"{registry}/python:3.11.99 stays as it is" in done.stderr
    assert path.read_text() == f"FROM {registry}/python:3.11.99\n"


def test_check_fails_for_each_base_image_without_a_digest(tmp_path: Path) -> None:
    dockerfile = tmp_path / "some.Dockerfile"
    pinned = f"FROM python:3.11@{DIGEST} AS build\nFROM build AS again\nFROM bu${{X}}\n"
    for text, status in ((pinned, 0), (pinned + "FROM python\n", 1)):
        dockerfile.write_text(text)
        checked = subprocess.run(
            [sys.executable, SCRIPT, "--check", dockerfile],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == status, checked.stderr
    assert "python has no digest" in checked.stderr


def test_advisories_of_an_npm_lock_are_found(tmp_path: Path) -> None:
    lock = tmp_path / "package-lock.json"
    lock.write_text(
        '{"packages": {"": {}, "node_modules/a": {"version": "1.0.0"},'
        ' "node_modules/a/node_modules/@b/c": {"version": "2.0.0"}}}'
    )
    server = HTTPServer(("127.0.0.1", 0), Advisories)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        database = f"http://127.0.0.1:{server.server_port}"
        audited = subprocess.run(
            [sys.executable, SCRIPT.parent / "audit-npm", database, lock],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert audited.returncode == 1
    assert audited.stdout.splitlines()[0] == "@b/c 2.0.0: GHSA-1"
