"""Tests what is scraped, alerted on and drawn: metrics that exist, and alerts that say what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from guanaco_server.observability.metrics import Metrics
from tests.fixtures.manifests import Object, build, of_kind

USED = re.compile(r"\bguanaco_[a-z_]+\b")
LABELS = re.compile(r"(guanaco_[a-z_]+)\{([^}]*)\}")
# Default counters of NVIDIA's DCGM exporter, and the labels that each of them has.
FOREIGN = {
    name: {"Hostname", "gpu", "modelName"}
    for name in (
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    )
}
DURATION = re.compile(r"\d+(s|m|h)")
ACTION_CHARS = 60  # fewer cannot say what to do
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    return build("production", tmp_path_factory.mktemp("production"))


def samples() -> dict[str, set[str]]:
    """The labels of every series there can be."""
    found: dict[str, set[str]] = {}
    for metric in Metrics().described:
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for ending in endings:
            found[metric.name + ending] = {*metric.labels, *(["le"] if ending == "_bucket" else [])}
    return found


def check_query(query: str) -> None:
    known = samples()
    known |= FOREIGN
    names = [*USED.findall(query), *re.findall(r"DCGM_\w+", query)]
    assert names, query
    assert [name for name in names if name not in known] == []
    for name, matchers in LABELS.findall(query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= known[name], query
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert set(re.split(r",\s*", grouped)) <= set.union(*(known[name] for name in names)), query
    assert query.count("(") == query.count(")")


def test_every_alert_names_a_real_metric_and_an_action(
    objects: list[Object],
) -> None:
    (rules,) = of_kind(objects, "PrometheusRule")
    assert set(rules["spec"]) == {"groups"}
    (ingress,) = of_kind(objects, "Ingress")
    host = ingress["spec"]["rules"][0]["host"]
    prometheus = RUNBOOKS.read_text().split("\n## ")[1]
    headings = re.findall(r"^### (\w+)$", prometheus, re.MULTILINE)
    alerts = [rule["alert"] for rule in rules["spec"]["groups"][0]["rules"]]
    assert sorted(headings) == sorted(alerts), (
        "each alert has a runbook, and no runbook is left over"
    )
    for rule in rules["spec"]["groups"][0]["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Guanaco[A-Za-z]+", rule["alert"])
        assert DURATION.fullmatch(rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "action", "runbook_url"}
        assert len(rule["annotations"]["action"]) > ACTION_CHARS
        assert rule["annotations"]["runbook_url"] == f"https://{host}/docs/runbooks#{rule['alert']}"
        check_query(rule["expr"])


def test_every_outcome_that_an_alert_counts_can_be_one(objects: list[Object]) -> None:
    from guanaco.errors import error_classes

    (rules,) = of_kind(objects, "PrometheusRule")
    for rule in rules["spec"]["groups"][0]["rules"]:
        for outcomes in re.findall(r'requests_total\{outcome=~"([^"]+)"', rule["expr"]):
            assert set(outcomes.split("|")) <= {*error_classes(), "internal"}


def test_every_panel_draws_metrics_that_exist(objects: list[Object]) -> None:
    (drawn,) = [
        found
        for found in of_kind(objects, "ConfigMap")
        if found["metadata"]["name"] == "guanaco-dashboard"
    ]
    assert drawn["metadata"]["labels"] == {"grafana_dashboard": "1"}
    dashboards = [json.loads(text) for text in drawn["data"].values()]
    assert [found["uid"] for found in dashboards] == ["guanaco-submissions", "guanaco"]
    drawn_metrics: set[str] = set()
    for dashboard in dashboards:
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                check_query(target["expr"])
                drawn_metrics |= set(USED.findall(target["expr"]))
    for metric in Metrics().described:
        assert any(name.startswith(metric.name) for name in drawn_metrics), (
            f"{metric.name} is drawn nowhere"
        )


def test_what_is_scraped_is_there(objects: list[Object]) -> None:
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert set(monitor["spec"]) == {"selector", "namespaceSelector", "endpoints"}
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    services = [
        found
        for found in of_kind(objects, "Service")
        if found["metadata"]["labels"].get(expression["key"]) in expression["values"]
    ]
    assert {found["metadata"]["namespace"] for found in services} == set(
        monitor["spec"]["namespaceSelector"]["matchNames"]
    )
    for endpoint in monitor["spec"]["endpoints"]:
        assert DURATION.fullmatch(endpoint["interval"])
        for service in services:
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
