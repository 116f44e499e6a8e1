"""`guanaco migrate`, `guanaco first-key` and the roles of `guanaco up`."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from guanaco.errors import InvalidSettings
from guanaco_cli.main import run
from guanaco_server.database.migrations import newest_revision
from guanaco_server.serve import require_shared
from guanaco_server.settings import Settings


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("GUANACO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def prepared(tmp_path: Path, migrated_sqlite: Path) -> Path:
    """The data folder of a platform whose database is migrated."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    shutil.copy(migrated_sqlite, data / "guanaco.db")
    return data


@pytest.mark.slow
def test_migrating_twice_says_that_there_was_nothing_to_do(tmp_path: Path, capsys: Any) -> None:
    arguments = ["migrate", "--data-dir", str(tmp_path / "data")]
    assert run(arguments) == 0
    assert f"was at revision none and is at {newest_revision()} now" in capsys.readouterr().err
    assert run(arguments) == 0
    assert "already" in capsys.readouterr().err


def test_the_first_key_is_shown_once_and_alone_on_stdout(prepared: Path, capsys: Any) -> None:
    assert run(["first-key", "--data-dir", str(prepared)]) == 0
    assert capsys.readouterr().out.strip().startswith("gk_")
    assert run(["first-key", "--data-dir", str(prepared)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "has an admin key already" in shown.err


def test_admin_key_is_made_where_the_last_was_revoked(prepared: Path, capsys: Any) -> None:
    assert run(["first-key", "--data-dir", str(prepared)]) == 0
    first = capsys.readouterr().out.strip()
    with closing(sqlite3.connect(prepared / "guanaco.db")) as database, database:
        database.execute("update api_keys set revoked_at = created_at")
    assert run(["first-key", "--data-dir", str(prepared)]) == 0
    assert capsys.readouterr().out.strip() not in ("", first)


@pytest.mark.parametrize("role", ["api", "worker"])
def test_a_role_names_every_shared_thing_that_it_lacks(
    role: str, tmp_path: Path, capsys: Any
) -> None:
    assert run(["up", "--role", role, "--data-dir", str(tmp_path / "data")]) == 2
    shown = capsys.readouterr().err
    assert "database_url, artifacts_url, pseudonym_key" in shown
    assert not (tmp_path / "data").exists()


def test_a_role_with_everything_shared_may_start() -> None:
    given = {"database_url": SecretStr("postgresql://db"), "pseudonym_key": SecretStr("k" * 32)}
    require_shared(Settings(role="worker", artifacts_url="s3://b/f", **given))  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match=r"given: artifacts_url\."):
        require_shared(Settings(role="worker", **given))  # type: ignore[arg-type]
    require_shared(Settings())


def test_an_unknown_role_is_wrong_use(capsys: Any) -> None:
    assert run(["up", "--role", "king"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("command", ["up --port 0", "migrate", "first-key"])
def test_a_database_that_is_down_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("GUANACO_DATABASE_URL", f"postgresql://u:hush@/db?host={tmp_path}")
    assert run([*command.split(), "--data-dir", str(tmp_path / "data")]) == 1
    shown = capfd.readouterr().err
    assert shown.count("error: The platform's database does not answer: connection") == 1
    assert "hint: Start the database, or correct GUANACO_DATABASE_URL" in shown
    assert "Traceback" not in shown
    assert "hush" not in shown


@pytest.mark.parametrize("command", ["up --port 0", "migrate", "first-key"])
def test_a_file_that_is_no_database_is_one_sentence(
    command: str, tmp_path: Path, capfd: Any
) -> None:
    (tmp_path / "guanaco.db").write_text("This is not a database. " * 40)
    tmp_path.chmod(0o700)
    assert run([*command.split(), "--data-dir", str(tmp_path)]) == 1
    shown = capfd.readouterr().err
    assert "error: The platform's database does not answer: file is not a database." in shown
    assert "Traceback" not in shown


def test_a_first_key_needs_migrated_tables(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "data").mkdir()
    assert run(["first-key", "--data-dir", str(tmp_path / "data")]) == 1
    assert "The database is at revision none" in capsys.readouterr().err
