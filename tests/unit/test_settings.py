"""Settings are read strictly: a wrong name or value stops the start with a sentence."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path
from urllib.parse import unquote

import pytest

from guanaco.errors import InvalidSettings
from guanaco_server.artifacts.collector import GracePeriods
from guanaco_server.artifacts.hub.hugging_face import ANSWER_TIMEOUT_S
from guanaco_server.assembly.app import HEARTBEAT_S
from guanaco_server.chat.conversations.history import HISTORY_CACHE_CHARS
from guanaco_server.chat.conversations.service import REPEATABLE_FOR
from guanaco_server.chat.room import RECORD_PATIENCE_S
from guanaco_server.clusters.kubernetes.api.client import KubernetesApi
from guanaco_server.database.schema import LONGEST_WAIT_S
from guanaco_server.feedback.recording import RATINGS_PER_MINUTE
from guanaco_server.http.body_limit import MAX_BODY_BYTES
from guanaco_server.notifications.loop import POLL_S
from guanaco_server.observability.redaction import Redaction
from guanaco_server.scaling.replicas import ReplicaLimits
from guanaco_server.settings import Settings, load_settings
from guanaco_server.settings.report import MASK, parts, settings_in_effect
from guanaco_server.settings.sources import SettingSource
from guanaco_server.settings.variables import OTHER_VARIABLES, REMOVED
from guanaco_server.stress.load import REQUEST_TIMEOUT_S
from guanaco_server.stress.verdict import Thresholds

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"(?<![A-Za-z0-9_])GUANACO_(?!TEST_)[A-Z0-9_]*[A-Z0-9]\b(?!_)")


def written(folder: Path, text: str) -> dict[str, str]:
    path = folder / "guanaco.toml"
    path.write_text(text)
    return {"GUANACO_CONFIG": str(path)}


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_settings(environ=environ)
    return refused.value.detail


def test_an_argument_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    config = written(tmp_path, "port = 1\nhost = 'file'\nrole = 'api'\n")
    environ = config | {"GUANACO_PORT": "2", "GUANACO_HOST": "environment"}
    found = {"engine_python": Path("/found"), "role": "worker"}
    loaded = load_settings({"port": 3}, environ=environ, found=found)
    settings, sources = loaded.settings, loaded.sources
    assert (settings.port, settings.host, settings.role) == (3, "environment", "api")
    assert settings.engine_python == Path("/found")
    assert [sources[name] for name in ("port", "host", "role", "engine_python", "data_dir")] == [
        SettingSource.ARGUMENT, SettingSource.ENVIRONMENT, SettingSource.FILE, SettingSource.FOUND, SettingSource.DEFAULT,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("GUANACO_PROT", "GUANACO_PORT"),
        ("GUANACO_DATABASE_URI", "GUANACO_DATABASE_URL"),
        ("guanaco_max_replica", "GUANACO_MAX_REPLICAS"),
        ("GUANACO_API_KEI", "GUANACO_API_KEY"),
        ("GUANACO_ENGINE_PYTHONS", "GUANACO_ENGINE_PYTHON"),
    ],
)
def test_an_unknown_variable_names_the_nearest(name: str, nearest: str) -> None:
    said = refusal({name: "1"})
    assert said == f"There is no setting {name.upper()}; the nearest is {nearest}."


@pytest.mark.parametrize(
    ("line", "key", "nearest"),
    [
        ("prot = 1", "prot", "port"),
        ("data-dir = 'x'", "data-dir", "data_dir"),
        ("PORT = 1", "PORT", "port"),
        ("[hub]\nendpoint = 'x'", "hub", "hub_token"),
    ],
)
def test_an_unknown_key_in_the_file_names_the_nearest(
    line: str, key: str, nearest: str, tmp_path: Path
) -> None:
    said = refusal(written(tmp_path, line))
    assert said.startswith(f"There is no setting {key} ({tmp_path}")
    assert said.endswith(f"the nearest is {nearest}.")


def test_every_unknown_name_is_named_at_once(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "prot = 1\nhots = 2\n") | {"GUANACO_ROEL": "api"})
    assert [word in said for word in ("GUANACO_ROEL", "prot", "hots")] == [True] * 3


def test_a_variable_may_be_written_in_lower_case() -> None:
    assert load_settings(environ={"guanaco_port": "9"}).settings.port == 9


@pytest.mark.parametrize("name", [*OTHER_VARIABLES, "GUANACO_TEST_ANYTHING"])
def test_a_variable_that_is_no_setting_stops_nothing(name: str) -> None:
    text = "" if name == "GUANACO_CONFIG" else "x"
    assert load_settings(environ={name: text}).settings == Settings()


@pytest.mark.parametrize("service", ["GUANACO", "GUANACO_API", "GUANACO_METRICS", "GUANACO_WORKER_0"])  # fmt: skip
def test_service_variables_of_kubernetes_stop_nothing(service: str) -> None:
    environ = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "80",
        f"{service}_SERVICE_PORT_HTTP_API": "80",
        f"{service}_PORT": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP_PROTO": "tcp",
        f"{service}_PORT_80_TCP_PORT": "80",
        f"{service}_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ=environ).settings == Settings()


def test_a_port_is_no_service_variable() -> None:
    assert "GUANACO_PORT: Input should be a valid integer" in refusal({"GUANACO_PORT": "tcp"})
    assert load_settings(environ={"GUANACO_METRICS_PORT": "90"}).settings.metrics_port == 90


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    said = refusal({"GUANACO_CONFIG": str(tmp_path / "none.toml")})
    assert (
        said == f"The settings in {tmp_path}/none.toml cannot be read: No such file or directory."
    )


def test_a_syntax_error_in_the_file_names_file_and_line(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "host = 'x'\nport = \n"))
    assert said.startswith(f"The settings in {tmp_path}/guanaco.toml are not TOML: ")
    assert "line 2" in said


@pytest.mark.parametrize("level", ["INFO", "info", "Debug"])
def test_a_log_level_may_be_in_any_case(level: str) -> None:
    assert load_settings(environ={"GUANACO_LOG_LEVEL": level}).settings.log_level == level.upper()


def test_a_wrong_log_level_names_the_right_ones(tmp_path: Path) -> None:
    right = "Input should be 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL'."
    assert refusal({"GUANACO_LOG_LEVEL": "loud"}) == f"GUANACO_LOG_LEVEL: {right}"
    config = written(tmp_path, "log_level = 'loud'")
    assert refusal(config) == f"log_level in {config['GUANACO_CONFIG']}: {right}"
    assert refusal(written(tmp_path, "log_level = 20")).endswith(right)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:secret@db/x", "A database of the kind 'mysql' is not supported."),
        ("sqlite:///x.db", "A database of the kind 'sqlite' is not supported."),
        ("host=db password=secret", "It is not a URL."),
        ("://secret", "It is not a URL."),
        ("", "It is not a URL."),
        ("postgresql://u:secret@db:port/x", "It cannot be read as a URL."),
    ],
)
def test_unsupported_database_is_one_sentence_without_the_url(url: str, says: str) -> None:
    said = refusal({"GUANACO_DATABASE_URL": url})
    assert said.startswith(f"GUANACO_DATABASE_URL: {says} Write postgresql://")
    assert "secret" not in said


@pytest.mark.parametrize("kind", ["postgresql", "postgres", "postgresql+psycopg"])
def test_each_spelling_of_postgresql_is_accepted(kind: str) -> None:
    settings = load_settings(environ={"GUANACO_DATABASE_URL": f"{kind}://u:p@db/x"}).settings
    assert settings.sqlalchemy_url == "postgresql+psycopg://u:p@db/x"


def test_a_number_with_few_values_is_read_from_the_environment() -> None:
    assert load_settings(environ={"GUANACO_LORA_MAX_RANK": "8"}).settings.lora_max_rank == 8
    assert "should be 8, 16" in refusal({"GUANACO_LORA_MAX_RANK": "9"})


def test_lists_and_tables_are_json_in_the_environment() -> None:
    environ = {
        "GUANACO_ENGINE_ARGS": '["--a", "b"]',
        "GUANACO_ENGINE_COMMAND": '["x"]',
        "GUANACO_ENGINE_PORTS": "[1, 2]",
        "GUANACO_GPU_PRICES": '{"H100": 2.5}',
    }
    settings = load_settings(environ=environ).settings
    assert (settings.engine_args, settings.engine_ports) == (["--a", "b"], (1, 2))
    assert (settings.engine_command, settings.gpu_prices) == (["x"], {"H100": 2.5})
    assert "GUANACO_ENGINE_ARGS: It is not JSON" in refusal({"GUANACO_ENGINE_ARGS": "--a b"})
    twice = refusal({"GUANACO_GPU_PRICES": '{"H100": 2.5, "H100": 3}'})
    assert "GUANACO_GPU_PRICES: line 1 repeats the key 'H100'." in twice


def test_a_removed_setting_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REMOVED, "bygone_s", "it is always 5 s now.")
    config = written(tmp_path, "bygone_s = 9\n")
    loaded = load_settings(environ=config | {"GUANACO_BYGONE_S": "9"})
    assert loaded.settings == Settings()
    assert loaded.notices == (
        "GUANACO_BYGONE_S has no effect: it is always 5 s now.",
        f"bygone_s in {config['GUANACO_CONFIG']} has no effect: it is always 5 s now.",
    )


def test_no_removed_setting_is_still_a_setting() -> None:
    assert REMOVED.keys() & Settings.model_fields.keys() == set()


def test_every_setting_belongs_to_one_part() -> None:
    names = [name for part in parts() for name in part.model_fields]
    assert sorted(names) == sorted(Settings.model_fields)


def test_the_report_masks_secrets_and_passwords_in_urls() -> None:
    environ = {
        "GUANACO_DATABASE_URL": "postgresql://u:hush@db:5432/x?sslmode=require&password=hush",
        "GUANACO_HUB_ENDPOINT": "https://u:hush@hub.example.com",
        "GUANACO_ENGINE_COMMAND": '["curl", "http://u:hush@x"]',
    }
    told = {one.name: one for one in settings_in_effect(load_settings(environ=environ))}
    shown = f"postgresql://u:{MASK}@db:5432/x?sslmode=require&password={MASK}"
    assert told["database_url"].value == shown
    assert told["hub_endpoint"].value == f"https://u:{MASK}@hub.example.com"
    assert "hush" not in repr(list(told.values()))
    assert told["database_url"].source == "environment (GUANACO_DATABASE_URL)"
    assert [name for name, one in told.items() if one.is_changed] == [
        "database_url", "hub_endpoint", "engine_command",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "password", ["hu/sh-hush", "hu sh-hush", "hu@sh-hush", "hu%2Fsh-hush", "hu:sh#hush?"]
)
def test_no_part_of_an_odd_password_is_shown(password: str) -> None:
    url = f"postgresql://guanaco:{password}@db.example/guanaco"
    loaded = load_settings(
        environ={"GUANACO_DATABASE_URL": url, "GUANACO_HUB_ENDPOINT": f"http://u:{password}@hub"}
    )
    told = {one.name: one.value for one in settings_in_effect(loaded)}
    assert told["database_url"] == f"postgresql://guanaco:{MASK}@db.example/guanaco"
    assert told["hub_endpoint"] == f"http://u:{MASK}@hub"
    logged = Redaction(loaded.settings.secrets).clean(
        f"{loaded.settings.sqlalchemy_url} http://u:{password}@hub {unquote(password)}"
    )
    assert "sh" not in logged


def test_each_removed_setting_tells_the_value_that_holds_now() -> None:
    limits, graces = ReplicaLimits(), GracePeriods()
    thresholds = Thresholds(1, 1, 1)
    now = {
        "max_body_bytes": MAX_BODY_BYTES,
        "schema_wait_s": LONGEST_WAIT_S,
        "hub_timeout_s": ANSWER_TIMEOUT_S,
        "artifact_sweep_s": graces.sweep_s,
        "artifact_grace_s": graces.artifact_s,
        "staging_grace_s": graces.staging_s,
        "kubernetes_patience_s": signature(KubernetesApi).parameters["patience_s"].default,
        "stress_max_error_rate": thresholds.max_error_rate,
        "stress_request_timeout_s": REQUEST_TIMEOUT_S,
        "scale_target": limits.target,
        "scale_down_window_s": limits.down_window_s,
        "record_patience_s": RECORD_PATIENCE_S,
        "history_cache_chars": HISTORY_CACHE_CHARS,
        "heartbeat_s": HEARTBEAT_S,
        "assignment_snapshot_days": REPEATABLE_FOR.days,
        "webhook_poll_s": POLL_S,
        "conversation_open_s": 0,
        "ratings_per_minute": RATINGS_PER_MINUTE,
    }
    replaced = {"warm_model_servers": "engine_nursery"}
    assert now.keys() | replaced.keys() == REMOVED.keys()
    assert all(name in REMOVED[before] for before, name in replaced.items())
    assert all(name in Settings.model_fields for name in replaced.values())
    for name, value in now.items():
        figure = f"{value:.1f}" if value < 1 else f"{value:.0f}"
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", REMOVED[name]), name


def test_every_variable_that_the_tree_names_is_known() -> None:
    """So that no start stops at a variable which the platform, its images or its manifests set themselves."""
    known = {f"GUANACO_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES.keys()
    named: dict[str, str] = {}
    for folder in ("guanaco", "cli", "server", "docker", "k8s", "scripts", ".ci", "Makefile"):
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            if path.is_file() and path.suffix not in {".pyc", ".woff2", ".png"}:
                found = VARIABLE.findall(path.read_text(errors="replace"))
                named |= dict.fromkeys(found, path.relative_to(ROOT).as_posix())
    assert len(named) > 30
    assert {name: place for name, place in named.items() if name not in known} == {}
