"""`guanaco up` as a child process in a folder of its own, for as long as the demo needs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guanaco.client import Client
from guanaco.errors import GuanacoError, ServerUnreachable
from guanaco.profile import Profile

DEFAULT_PORT = 8300
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
POLL_S = 0.1
LOG_TAIL_LINES = 5


@dataclass(frozen=True)
class RunningPlatform:
    url: str
    admin_key: str
    profile_path: Path
    process: subprocess.Popen[bytes]

    def wait(self) -> int:
        """Wait until the platform ends by itself; return its exit status."""
        return self.process.wait()


@contextmanager
def running_platform(
    folder: Path, port: int | None, settings: Mapping[str, str]
) -> Iterator[RunningPlatform]:
    """Start a platform with its data, log and profile in the folder, and stop it at the end."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = port or _free_port()
    profile, log = folder / "profile.json", folder / "platform.log"
    command = [
        sys.executable,
        "-m",
        "guanaco_cli",
        "up",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "data")],
            env=_environment(profile, settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours: the platform is stopped when the demo says so
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_answer(process, url, log)
        yield RunningPlatform(url, _admin_key(profile, folder), profile, process)
    finally:
        _stop(process)


def _environment(profile: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the user's own profile, and with no proxy before this machine."""
    environment = dict(os.environ)
    for name in ("GUANACO_URL", "GUANACO_API_KEY", "GUANACO_CONFIG", "GUANACO_DATABASE_URL"):
        environment.pop(name, None)
    for name in ("NO_PROXY", "no_proxy"):
        direct = (environment.get(name), "127.0.0.1", "localhost")
        environment[name] = ",".join(part for part in direct if part)
    return environment | {"GUANACO_PROFILE": str(profile)} | dict(settings)


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise GuanacoError(
                f"The platform ended at its start: {_tail(log)}", hint=f"Its log is {log}."
            )
        try:
            with Client(url, "") as client:
                client.leaderboard()
            return
        except ServerUnreachable:
            time.sleep(POLL_S)
    raise GuanacoError(
        f"The platform did not answer within {START_TIMEOUT_S} s.", hint=f"Its log is {log}."
    )


def _admin_key(profile: Path, folder: Path) -> str:
    """`guanaco up` writes the profile when it is ready, a moment after it answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        stored = Profile.read(profile)
        if stored is not None and stored.key is not None:
            return stored.key
        time.sleep(POLL_S)
    raise GuanacoError(
        f"{folder} holds a platform that no demo made: its admin key is not there.",
        hint="Choose another --data-dir.",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    """Return the usual port, or any other if that is taken."""
    for port in (DEFAULT_PORT, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as listener:
                return int(listener.getsockname()[1])
        except OSError:
            continue
    raise GuanacoError("This machine has no free port.")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-LOG_TAIL_LINES:]) or "it said nothing"
