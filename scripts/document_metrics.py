"""Writes docs/metrics.md from the Metrics class; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

from pathlib import Path

from guanaco_server.observability.metrics import Metrics

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """\
# Metrics

What `GET /metrics` says: on `metrics_port`, where one is set, to anybody who can reach it; on the API's port with an
admin key. Each process says what it saw itself: sum counters and histograms over all. The gauges of submissions,
deployments and workers are facts of the database that each worker reads every 10 seconds: take their `max`. A
histogram also has `_bucket`, `_sum` and `_count`.

Ratings and the metrics of submissions are in [scores.md](scores.md). This page is written by `make docs` from `server/guanaco_server/observability/metrics.py`.

| metric | type | labels | what it is |
| --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |\n"
        for metric in Metrics().described
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
