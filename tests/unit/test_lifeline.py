from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from guanaco_server.engine import lifeline


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "platform.lock"
    path.touch()
    return path


def test_a_lifeline_is_held_while_a_platform_has_the_lock(lock: Path) -> None:
    with lock.open() as platform:
        fcntl.flock(platform, fcntl.LOCK_EX)
        assert lifeline.is_held(str(lock))
    assert not lifeline.is_held(str(lock))


def test_a_lock_file_that_was_removed_is_held_by_nobody(tmp_path: Path) -> None:
    assert not lifeline.is_held(str(tmp_path / "gone"))


def test_looking_does_not_block_a_starting_platform_from_the_lock(lock: Path) -> None:
    assert not lifeline.is_held(str(lock))
    with lock.open() as platform:
        fcntl.flock(platform, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_without_the_variable_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lifeline.PATH_VARIABLE, raising=False)
    assert lifeline.hold() is None
    assert lifeline.PATH_VARIABLE not in os.environ
