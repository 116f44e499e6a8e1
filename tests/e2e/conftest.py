"""What the stories share: a Hub with a real repo, and a platform that starts in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import SCRIPTED_ENGINE, Up

StartPlatform = Callable[..., Up]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ControlledHub]:
    """With one good repo, acme/tiny."""
    make_tiny_repo(tmp_path / "hub" / "acme" / "tiny")
    with ControlledHub(tmp_path / "hub") as hub:
        yield hub
        hub.release()


@pytest.fixture
def start_platform(
    tmp_path: Path, hub: ControlledHub, engine_python: Path
) -> Iterator[StartPlatform]:
    """Starts `guanaco up` with a scripted model server (or the given engine) and the real serializer; nothing outlives the test."""
    started: list[Up] = []

    def start(**settings: object) -> Up:
        quick = {
            "hub_endpoint": hub.url,
            "engine_python": str(engine_python),
            "engine_command": SCRIPTED_ENGINE,
            "stress_duration_s": 0.5,
            "stress_rate": 4,
            "failover_s": 60,  # a busy machine takes its time to start a server again
            "first_token_timeout_s": 60,
        }
        up = Up(tmp_path / f"up{len(started)}", **(quick | settings))
        started.append(up)
        up.start()
        return up

    yield start
    for up in started:
        up.stop()
        assert up.model_servers() == [], "a stopped platform leaves no model server behind"
