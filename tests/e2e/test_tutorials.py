"""The tutorials' commands, as they stand on the page, run against a platform over HTTP; its model server is scripted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.hub import ControlledHub
from tests.fixtures.ports import free_port
from tests.fixtures.up import SCRIPTED_ENGINE, Up, scripted

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND_S = 120
NAMED = re.compile(r"# ([\w.-]+)\n")


@pytest.fixture
def platform(tmp_path: Path, engine_python: Path) -> Iterator[Up]:
    make_tiny_repo(tmp_path / "hub" / "org" / "my-model")
    with (
        ControlledHub(tmp_path / "hub") as hub,
        scripted(tmp_path / "up", hub, engine_python) as up,
    ):
        yield up


def environment(**changes: str) -> dict[str, str]:
    """Return this one with our commands first, and without settings and keys of its own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GUANACO_")}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return kept | {"COLUMNS": "200", **changes}


def run(command: str, folder: Path, env: dict[str, str]) -> str:
    """Return what the commands of a block print; the first that fails fails the test."""
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def missing(expected: str, said: str) -> list[str]:
    """Return the lines that the page shows and nothing printed."""
    return [line for line in expected.splitlines() if line.strip() not in said]


def test_the_tutorial_of_a_model_works_as_it_stands(platform: Up, tmp_path: Path) -> None:
    with platform.client() as admin:
        key = admin.create_key("ada", Role.DEVELOPER).key
    env = environment(GUANACO_URL=platform.base_url, GUANACO_API_KEY=key)
    folder = tmp_path / "work"
    folder.mkdir()
    said = ""
    for language, text in BLOCK.findall((TUTORIALS / "improve.md").read_text()):
        if language == "yaml":
            name = NAMED.match(text)
            assert name is not None
            (folder / name[1]).write_text(text)
        elif language == "text":
            assert missing(text, said) == []
        else:
            said = run(text, folder, env)
    assert (folder / "down.csv").exists()


def test_the_tutorial_of_an_app_works_as_it_stands(tmp_path: Path, engine_python: Path) -> None:
    ports = {"8300": str(free_port()), "9000": str(free_port())}
    page = (TUTORIALS / "chat-app.md").read_text()
    for shown, free in ports.items():
        page = page.replace(shown, free)
    page = page.replace("make setup engine\n", "").replace(". .venv/bin/activate\n", "")
    demo, app, reading = [text for language, text in BLOCK.findall(page) if not language]
    expected_of_app, expected_of_reading = [text for kind, text in BLOCK.findall(page) if kind]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = environment(
        GUANACO_ENGINE_PYTHON=str(engine_python),
        GUANACO_ENGINE_COMMAND=str(SCRIPTED_ENGINE).replace("'", '"'),
        GUANACO_STRESS_DURATION_S="0.5",
        GUANACO_STRESS_RATE="4",
        GUANACO_STRESS_REQUESTS="4",
    )
    with Background(demo, tmp_path, env, "In another terminal"):
        client = {k: v for k, v in env.items() if not k.startswith("GUANACO_")}
        with Background(app, tmp_path, client, "Nia waits at") as log:
            assert missing(expected_of_app, log.read_text()) == []
        assert missing(expected_of_reading, run(reading, tmp_path, client)) == []


def _heed_interrupts() -> None:
    """Let Ctrl-C end what follows, also where the tests run in a shell's background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Background:
    """Run a block until it says what it says when it is ready; Ctrl-C at the end. Entered, it is what was printed."""

    def __init__(self, command: str, folder: Path, env: dict[str, str], ready: str) -> None:
        self._log = folder / f"{ready.replace(' ', '-')}.log"
        self._ready = ready
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-ec", command],
                cwd=folder,
                env=env | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_heed_interrupts,
            )

    def __enter__(self) -> Path:
        while self._ready not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)  # the suite's limit ends what never comes
        return self._log

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(240)
