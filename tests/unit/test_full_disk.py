"""Tests the words for SQLite's errors on a full disk."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from guanaco_server.database.database import unavailable

ROOM = 10_000_000


@pytest.mark.parametrize("free_bytes", [0, ROOM])
def test_an_io_error_without_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """SQLite says so where its shared memory finds no room."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    told = unavailable(OperationalError("PRAGMA", None, failed), str(tmp_path / "guanaco.db"))
    assert ("disk is full" in told.detail, "I/O error" in told.detail) == (
        free_bytes == 0,
        free_bytes == ROOM,
    )
