"""`guanaco backup` and `guanaco restore`, as an operator types them; on SQLite."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from guanaco_cli.main import run
from guanaco_server.runtime.data_dir import DataDir


@pytest.fixture
def data(
    tmp_path: Path, migrated_sqlite: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> str:
    """The folder of a platform that has been prepared and has its key."""
    for name in os.environ:
        if name.startswith("GUANACO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir(mode=0o700)
    shutil.copy(migrated_sqlite, "data/guanaco.db")
    run(["first-key", "--data-dir", "data"])
    DataDir(tmp_path / "data").pseudonym_key()
    capsys.readouterr()
    return "data"


@pytest.mark.slow
def test_a_backup_is_made_listed_verified_and_restored(data: str, capsys: Any) -> None:
    here = ["--data-dir", data]
    assert run(["backup", *here, "--to", "kept"]) == 0
    shown = capsys.readouterr()
    path = shown.out.strip()
    assert Path(path).parent.name == "kept"
    assert "does not hold pseudonym_key: keep a copy of" in shown.err
    assert "Next: `guanaco backup verify --data-dir data --to kept`" in shown.err
    assert run(["backup", "list", *here, "--to", "kept", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["backups"]
    assert (listed["path"], listed["method"], listed["rows"]["api_keys"]) == (path, "sqlite", 1)

    assert run(["backup", "verify", *here, "--to", "kept", "--json"]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert (proof["is_good"], proof["erasures_repeated"], proof["has_same_key"]) == (True, 0, True)
    assert proof["rpo_s"] >= 0
    assert proof["rto_s"] > 0
    assert run(["backup", "verify", path, *here]) == 0
    assert "the same" in capsys.readouterr().out

    assert run(["restore", path, *here]) == 1
    assert "is there already, so nothing was restored" in capsys.readouterr().err
    assert run(["restore", path, *here, "--replace"]) == 0
    assert "What was there is" in capsys.readouterr().err
    assert not list(Path(data).glob("*.restoring*"))


def test_what_cannot_be_restored_so_is_wrong_use(data: str, capsys: Any) -> None:
    here = ["--data-dir", data]
    run(["backup", *here])
    for options, says in (
        (["--until", "yesterday"], "is no time"),
        (["--until", "2026-11-22T19:15:00Z"], "Only a base backup with archived WAL"),
        (["--pg-data", "elsewhere"], "Only a base backup has a data folder"),
    ):
        capsys.readouterr()
        assert run(["restore", *here, *options]) == 2
        assert says in capsys.readouterr().err


def test_damaged_backup_hides_no_other(data: str, capsys: Any) -> None:
    here = ["--data-dir", data, "--to", "kept"]
    assert run(["backup", *here]) == 0
    path = Path(capsys.readouterr().out.strip())
    (damaged := path.with_name("20200101T000000Z")).mkdir()
    (damaged / "backup.json").write_text("{")
    assert run(["backup", "list", *here]) == 0
    shown = capsys.readouterr()
    assert path.name in shown.out
    assert f"The backup.json of {damaged} cannot be read" in shown.err.replace("\n", " ")
    assert run(["backup", "list", *here, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in listed["backups"]] == [str(path)]
    assert [one["path"] for one in listed["damaged"]] == [str(damaged)]


@pytest.mark.slow
def test_backup_is_found_by_the_name_that_list_shows(data: str, capsys: Any) -> None:
    here = ["--data-dir", data, "--to", "kept"]
    run(["backup", *here])
    name = Path(capsys.readouterr().out.strip()).name
    assert run(["backup", "verify", name, *here]) == 0
    assert run(["restore", name, *here]) == 1
    assert "is there already" in capsys.readouterr().err
    assert run(["backup", "verify", "20200101T000000Z", *here]) == 1
    assert "There is no backup 20200101T000000Z" in capsys.readouterr().err


def test_folder_without_backups_is_not_an_empty_table(data: str, capsys: Any) -> None:
    assert run(["backup", "list", "--data-dir", data]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "There is no backup in" in shown.err
    assert run(["backup", "list", "--data-dir", data, "--to", "nowhere"]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_an_erasure_that_nobody_entered_cannot_be_revoked(data: str, capsys: Any) -> None:
    assert run(["backup", "erasures", "--data-dir", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"erasures": []}
    assert run(["backup", "erasures", "--data-dir", data, "--revoke", "0" * 32]) == 1
    assert "There is no erasure" in capsys.readouterr().err


def test_without_a_backup_there_is_one_sentence(data: str, capsys: Any) -> None:
    assert run(["backup", "verify", "--data-dir", data]) == 1
    assert "There is no backup in" in capsys.readouterr().err
    assert run(["backup", "--data-dir", "nowhere"]) == 1
    assert "There is no database in" in capsys.readouterr().err
