"""Tests what can be known of the migrations without a database."""

from __future__ import annotations

from alembic.script import ScriptDirectory

from guanaco_server.database.migrations import SCRIPTS, newest_revision


def test_there_is_one_newest_migration() -> None:
    assert ScriptDirectory(str(SCRIPTS)).get_heads() == [newest_revision()]
