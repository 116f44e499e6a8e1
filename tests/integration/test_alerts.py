"""The alerts, tried out by Prometheus' own promtool on series that our own metrics have said."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from guanaco.errors import ModelUnavailable
from guanaco.submissions import Status
from guanaco_server.deployments.tables import Phase
from guanaco_server.observability.by_submission import ServerStatistics, Spend
from guanaco_server.observability.exposition import scrape
from guanaco_server.observability.metrics import IdGauges, Metrics

RULES = Path(__file__).parents[2] / "k8s" / "monitoring" / "alerts.yaml"
MINUTES = 40  # longer than any alert waits
Story = Callable[[Metrics, int], None]


def census(
    metrics: Metrics,
    minute: int,
    *,
    workers: int = 1,
    oldest_s: float = 0,
    at: float | None = None,
    unplaced: int = 0,
    **phases: int,
) -> None:
    submissions = {status.value: 0 for status in Status} | {"deployed": sum(phases.values())}
    deployments = {phase.value: 0 for phase in Phase} | phases
    seen = minute * 60.0 if at is None else at
    unserved = {"starting": 0, "unplaced": unplaced}
    metrics.note_database_gauges(submissions, oldest_s, deployments, unserved, workers, seen)


def reply(metrics: Metrics, seconds: float = 0.2, outcome: str = "ok") -> None:
    metrics.note_reply_begun()
    metrics.note_first_token(seconds)
    metrics.note_reply_ended(outcome)


def healthy(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=2)
    reply(metrics)
    metrics.note_http("GET", "/api/v1/leaderboard", 200, 0.01)
    metrics.note_stage("resolve", "done", 1)
    ids(metrics, oldest=240e6, days=11)


def ids(metrics: Metrics, *, oldest: float, days: float | None, vacuum_at: float = 200e6) -> None:
    both = {"transaction": int(vacuum_at), "multixact": int(2 * vacuum_at)}
    ages = {"transaction": int(oldest), "multixact": 9}
    metrics.note_transaction_ids(IdGauges(ages, both, days, per_thousand_turns=100))


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


def published_unserved(metrics: Metrics, minute: int) -> None:
    census(metrics, minute, ready=2, unplaced=1)
    reply(metrics)
    metrics.note_http("GET", "/api/v1/leaderboard", 200, 0.01)


def http_errors(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    metrics.note_http("GET", "/api/v1/leaderboard", 503, 0.01)


def submission_fails(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    for _ in range(30):
        with metrics.reply("acme-good_v1") as measured:
            measured.note_end(10, 2)
    with suppress(ModelUnavailable), metrics.reply(BAD):
        raise ModelUnavailable(BAD)


def cache_full(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    full, calm = ServerStatistics(8, 3, 0.99), ServerStatistics(8, 0, 0.99)
    metrics.submissions.note_servers({BAD: full, "acme-good_v1": calm})


def gpus_missing(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    metrics.note_gpus_wanted({"H100": 4, "L4": 1})
    metrics.note_gpus_held({"L4": 1}, {"L4": 0.8})


def pool_empty(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    metrics.note_pools({"h100": 0, "l4": 2})


def just_started(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    ids(metrics, oldest=0, days=None)


def fast_and_well_vacuumed(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    ids(metrics, oldest=220e6, days=2)


def vacuum_late(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    ids(metrics, oldest=400e6, days=10)


def ids_run_out(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    ids(metrics, oldest=1.2e9, days=2, vacuum_at=1e9)


def ids_nearly_gone(metrics: Metrics, minute: int) -> None:
    healthy(metrics, minute)
    ids(metrics, oldest=1.6e9, days=40, vacuum_at=1.5e9)


BAD = "acme-bad_v1"
ALERT_LABELS = {
    "GuanacoSubmissionFails": {"submission": BAD},
    "GuanacoKvCacheFull": {"submission": BAD},
    "GuanacoGpusMissing": {"gpu_type": "H100"},
    "GuanacoPoolEmpty": {"pool": "h100"},
    "GuanacoVacuumLate": {"kind": "transaction"},
}

STORIES: dict[Story | None, str | None] = {
    healthy: None,
    all_asleep: None,
    None: "GuanacoNotScraped",
    no_worker: "GuanacoNoWorker",
    census_stale: "GuanacoCensusStale",
    replies_fail: "GuanacoRepliesFail",
    first_token_slow: "GuanacoFirstTokenSlow",
    nothing_served: "GuanacoNothingServed",
    published_unserved: "GuanacoPublishedUnserved",
    servers_restart: "GuanacoModelServersRestart",
    never_woken: "GuanacoModelServersRestart",
    queue_stuck: "GuanacoQueueStuck",
    stages_fail: "GuanacoStagesFail",
    http_errors: "GuanacoHttpErrors",
    submission_fails: "GuanacoSubmissionFails",
    cache_full: "GuanacoKvCacheFull",
    gpus_missing: "GuanacoGpusMissing",
    pool_empty: "GuanacoPoolEmpty",
    just_started: None,
    fast_and_well_vacuumed: None,
    vacuum_late: "GuanacoVacuumLate",
    ids_run_out: "GuanacoTransactionIdsRunOut",
    ids_nearly_gone: "GuanacoTransactionIdsRunOut",
}


@pytest.mark.slow
def test_each_alert_fires_only_in_its_own_story(tmp_path: Path) -> None:
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert {name for name in STORIES.values() if name} == set(rules)
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": groups}))  # JSON is YAML
    tests = [_test(story, fires, rules) for story, fires in STORIES.items()]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_every_panel_is_promql_and_tokens_for_money_are_right(tmp_path: Path) -> None:
    panels = {
        panel["title"]: panel["targets"]
        for name in ("guanaco.json", "guanaco-submissions.json")
        for panel in json.loads((RULES.parent / name).read_text())["panels"]
    }
    queries = [
        target["expr"].replace("$submission", ".*") for each in panels.values() for target in each
    ]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(queries)]
    groups = [{"name": "panels", "rules": rules}]
    (tmp_path / "panels.yaml").write_text(json.dumps({"groups": groups}))
    promtool("check", "rules", str(tmp_path / "panels.yaml"))

    (target,) = panels["Completion tokens for one unit of money"]
    test = {
        "interval": "1m",
        "input_series": _series(paid_for, target["expr"], 70),
        "promql_expr_test": [
            {
                "expr": f"round({target['expr'].replace('$submission', '.*')})",
                "eval_time": "69m",
                "exp_samples": [{"labels": '{submission="acme-paid_v1"}', "value": 60 * 100 / 2}],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps({"tests": [test]}))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def paid_for(metrics: Metrics, _minute: int) -> None:
    """100 tokens a minute, on GPUs for 2 an hour; and one whose GPUs cost nothing."""
    for submission_id in ("acme-paid_v1", "acme-free_v1"):
        with metrics.reply(submission_id) as measured:
            measured.note_end(10, 100)
    metrics.submissions.note_spending({"acme-paid_v1": Spend(2, 5), "acme-free_v1": Spend(0, 0)})


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        sentence = "There is no promtool here: `scripts/setup-debian prometheus` installs it."
        pytest.fail(sentence, pytrace=False) if os.environ.get("CI") else pytest.skip(sentence)
    found = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def _test(
    story: Story | None, fires: str | None, rules: dict[str, dict[str, Any]]
) -> dict[str, object]:
    queries = " ".join(rule["expr"] for rule in rules.values())
    expected = [
        {
            "eval_time": f"{MINUTES - 1}m",
            "alertname": name,
            "exp_alerts": [_alert(name, rule)] if name == fires else [],
        }
        for name, rule in rules.items()
    ]
    return {
        "name": story.__name__ if story else "no_process",
        "interval": "1m",
        "input_series": _series(story, queries) if story else [],
        "alert_rule_test": expected,
    }


def _alert(name: str, rule: dict[str, Any]) -> dict[str, object]:
    """Return what Prometheus makes of a rule: its labels and sentences with those of the series."""
    own = ALERT_LABELS.get(name, {})
    texts = dict(rule["annotations"])
    for label, value in own.items():
        texts = {
            key: text.replace(f"{{{{ $labels.{label} }}}}", value) for key, text in texts.items()
        }
    return {"exp_labels": rule["labels"] | own, "exp_annotations": texts}


def _series(story: Story, queries: str, minutes: int = MINUTES) -> list[dict[str, str]]:
    """Scrape the metrics that the queries name once a minute while the story goes on."""
    metrics, asked = Metrics(), set(re.findall(r"\w+", queries))
    seen: dict[str, list[str]] = {}
    for minute in range(minutes):
        story(metrics, minute)
        for line in scrape(metrics).decode().splitlines():
            name, _, text = line.rpartition(" ")
            if name.partition("{")[0] in asked:
                value = float(text)
                values = seen.setdefault(name, ["_"] * minute)
                values.append(f"{value:g}" if value < 1e6 else f"{value:.0f}")
    return [{"series": name, "values": " ".join(values)} for name, values in seen.items()]
