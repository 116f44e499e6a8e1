from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from guanaco.profile import Profile
from guanaco_cli.installation import read_settings
from guanaco_cli.main import run
from guanaco_cli.platform import greet
from guanaco_server.serve import StartupInfo
from guanaco_server.settings import Settings

URL = "http://127.0.0.1:8300"


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("GUANACO_"):
            monkeypatch.delenv(name)
    path = tmp_path / "config" / "profile.json"
    monkeypatch.setenv("GUANACO_PROFILE", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def test_first_start_shows_the_admin_key_and_stores_the_profile(profile: Path, capsys: Any) -> None:
    greet(StartupInfo(URL, "gk_admin", "all"))
    shown = capsys.readouterr().err
    assert URL in shown
    assert shown.count("gk_admin") == 1
    assert Profile.read(profile) == Profile(URL, "gk_admin")


def test_a_later_start_shows_no_key_and_touches_no_profile(profile: Path, capsys: Any) -> None:
    greet(StartupInfo(URL, None, "all"))
    assert URL in capsys.readouterr().err
    assert not profile.exists()


def test_a_worker_sends_nobody_to_its_own_address_to_submit(profile: Path, capsys: Any) -> None:
    greet(StartupInfo(URL, None, "worker"))
    shown = capsys.readouterr().err
    assert f"{URL}/readyz" in shown
    assert "guanaco submit" not in shown
    assert not profile.exists()


def test_a_profile_of_another_server_stays(profile: Path, capsys: Any) -> None:
    other = Profile("https://guanaco.example.com", "mine")
    other.save(profile)
    greet(StartupInfo(URL, "gk_admin", "all"))
    assert Profile.read(profile) == other
    assert f"guanaco login --url {URL}" in capsys.readouterr().err


def test_new_platform_at_the_address_replaces_the_profile(profile: Path) -> None:
    Profile(URL, "of a data folder that is gone").save(profile)
    greet(StartupInfo(URL, "gk_admin", "all"))
    assert Profile.read(profile) == Profile(URL, "gk_admin")


def test_unusable_profile_does_not_stop_the_platform(profile: Path, capsys: Any) -> None:
    Profile(URL, "x").save(profile)
    profile.chmod(0o644)
    greet(StartupInfo(URL, "gk_admin", "all"))
    assert "warning: " in capsys.readouterr().err


def test_the_engine_environment_beside_the_working_folder_is_found(tmp_path: Path) -> None:
    python = tmp_path / ".venv-engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert read_settings({}).engine_python == python


def test_what_the_settings_say_of_the_engine_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv-engine" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-engine" / "bin" / "python").touch()
    config = tmp_path / "guanaco.toml"
    config.write_text('engine_python = "/somewhere/bin/python"\n')
    monkeypatch.setenv("GUANACO_CONFIG", str(config))
    assert read_settings({}).engine_python == Path("/somewhere/bin/python")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("GUANACO_STRESS_RATE", "-1", "GUANACO_STRESS_RATE: Input should be greater than 0."),
        ("GUANACO_ENGINE_ARGS", "not json", "GUANACO_ENGINE_ARGS: It is not JSON"),
        ("GUANACO_PORT", "many", "GUANACO_PORT: "),
    ],
)
def test_a_wrong_setting_is_a_sentence_and_exit_status_2(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["up"]) == 2
    assert says in capsys.readouterr().err


def test_broken_config_file_is_a_sentence_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("GUANACO_CONFIG", "")  # given back at the end of the test
    (tmp_path / "bad.toml").write_text("port = \n")
    assert run(["up", "--config", str(tmp_path / "bad.toml")]) == 2
    assert "bad.toml are not TOML: " in capsys.readouterr().err
    assert run(["up", "--config", str(tmp_path / "none.toml")]) == 2


def test_without_the_platforms_packages_it_says_which_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "guanaco_server.serve", None)
    assert run(["up"]) == 1
    assert "pip install 'guanaco-platform[server]'" in capsys.readouterr().err


def test_settings_prints_values_and_where_each_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = tmp_path / "guanaco.toml"
    config.write_text("restart_limit = 5\n")
    monkeypatch.setenv("GUANACO_CONFIG", "")  # --config sets it: given back at the end of the test
    monkeypatch.setenv("GUANACO_HUB_TOKEN", "hf_secret")
    arguments = ["settings", "--config", str(config), "--port", "9", "--changed"]
    assert run([*arguments, "--json"]) == 0
    shown = capsys.readouterr().out
    told = {one["name"]: (one["value"], one["source"]) for one in json.loads(shown)["settings"]}
    told.pop("engine_python", None)  # a machine may have an engine environment
    assert told == {
        "port": (9, "argument (--port)"),
        "hub_token": ("********", "environment (GUANACO_HUB_TOKEN)"),
        "restart_limit": (5, f"file ({config})"),
    }
    assert "hf_secret" not in shown
    assert run(arguments) == 0
    table = capsys.readouterr().out
    assert "restart_limit" in table
    assert "s3_region" not in table


def test_settings_prints_the_defaults_too(capsys: Any) -> None:
    assert run(["settings", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["settings"]}
    assert found.keys() == Settings.model_fields.keys()
    assert found["engine_ports"]["value"] == [21_000, 29_999]
    assert found["port"]["source"] == "default"


@pytest.mark.parametrize("command", ["up", "migrate", "first-key", "settings", "plan llama-3-8b"])
def test_a_misspelled_setting_stops_every_command_that_reads_them(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("GUANACO_PROT", "1")
    assert run(command.split()) == 2
    assert "no setting GUANACO_PROT; the nearest is GUANACO_PORT." in capsys.readouterr().err


def test_a_removed_setting_is_a_warning(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("GUANACO_HEARTBEAT_S", "3")
    assert run(["settings", "--changed"]) == 0
    shown = capsys.readouterr().err
    assert "warning: GUANACO_HEARTBEAT_S has no effect: a silent stream always gets" in shown
