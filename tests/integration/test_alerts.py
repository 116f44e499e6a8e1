"""The alerts, tried out by Prometheus' own promtool on series that our own metrics have said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from guanaco.submissions import Status
from guanaco_server.deployments.tables import Phase
from guanaco_server.observability.exposition import scrape
from guanaco_server.observability.metrics import Metrics

RULES = Path(__file__).parents[2] / "k8s" / "monitoring" / "alerts.yaml"
MINUTES = 30  # longer than any alert waits
Story = Callable[[Metrics, int], None]


def census(
    metrics: Metrics,
    minute: int,
    *,
    workers: int = 1,
    oldest_s: float = 0,
    at: float | None = None,
    **phases: int,
) -> None:
    submissions = {status.value: 0 for status in Status} | {"deployed": sum(phases.values())}
    deployments = {phase.value: 0 for phase in Phase} | phases
    seen = minute * 60.0 if at is None else at
    metrics.note_census(submissions, oldest_s, deployments, workers, seen)


def reply(metrics: Metrics, seconds: float = 0.2, outcome: str = "ok") -> None:
    metrics.note_reply_begun()
    metrics.note_first_token(seconds)
    metrics.note_reply_ended(outcome)


def healthy(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=2)
    reply(metrics)
    metrics.note_http("GET", "/api/v1/leaderboard", 200, 0.01)
    metrics.note_stage("resolve", "done", 1)


def all_asleep(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, sleeping=3)
    reply(metrics)


def no_worker(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, workers=0, ready=1)


def census_stale(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, at=0, ready=1)


def replies_fail(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    reply(metrics, outcome="model_unavailable")


def first_token_slow(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=1)
    reply(metrics, seconds=8)


def nothing_served(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, starting=2)


def servers_restart(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=1, restarting=1)


def never_woken(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, sleeping=1, waking=1)


def queue_stuck(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, oldest_s=60.0 * minute, ready=1)


def stages_fail(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=1)
    metrics.note_stage("resolve", "done", 1)
    metrics.note_stage("check", "failed", 1)


def http_errors(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    metrics.note_http("GET", "/api/v1/leaderboard", 503, 0.01)


STORIES: dict[Story | None, str | None] = {
    healthy: None,
    all_asleep: None,
    None: "GuanacoNotScraped",
    no_worker: "GuanacoNoWorker",
    census_stale: "GuanacoCensusStale",
    replies_fail: "GuanacoRepliesFail",
    first_token_slow: "GuanacoFirstTokenSlow",
    nothing_served: "GuanacoNothingServed",
    servers_restart: "GuanacoModelServersRestart",
    never_woken: "GuanacoModelServersRestart",
    queue_stuck: "GuanacoQueueStuck",
    stages_fail: "GuanacoStagesFail",
    http_errors: "GuanacoHttpErrors",
}


def test_each_alert_fires_in_its_own_story_and_in_no_other(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        sentence = "There is no promtool here: `scripts/setup-debian prometheus` installs it."
        pytest.fail(sentence, pytrace=False) if os.environ.get("CI") else pytest.skip(sentence)
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert {name for name in STORIES.values() if name} == set(rules)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    tests = [_test(story, fires, rules) for story, fires in STORIES.items()]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    found = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yaml")], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


def _test(
    story: Story | None, fires: str | None, rules: dict[str, dict[str, object]]
) -> dict[str, object]:
    expected = [
        {
            "eval_time": f"{MINUTES - 1}m",
            "alertname": name,
            "exp_alerts": [{"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}]
            if name == fires
            else [],
        }
        for name, rule in rules.items()
    ]
    return {
        "name": story.__name__ if story else "no_process",
        "interval": "1m",
        "input_series": _series(story) if story else [],
        "alert_rule_test": expected,
    }


def _series(story: Story) -> list[dict[str, str]]:
    """Scrape the metrics once a minute while the story goes on."""
    metrics = Metrics()
    seen: dict[str, list[str]] = {}
    for minute in range(MINUTES):
        story(metrics, minute)
        for family in text_string_to_metric_families(scrape(metrics).decode()):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                values = seen.setdefault(f"{sample.name}{{{labels}}}", ["_"] * minute)
                values.append(f"{sample.value:g}" if sample.value < 1e6 else f"{sample.value:.0f}")
    return [{"series": name, "values": " ".join(values)} for name, values in seen.items()]
