"""Writes docs/metrics.md from the pages' metrics of submissions and the Metrics class; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

from pathlib import Path

from guanaco_server.observability.metrics import Metrics
from guanaco_server.web.views.metric_tiles import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """\
# Metrics

There are two kinds: [those of a submission](#of-a-submission), by which developers compete, and
[those of the platform](#of-the-platform), which operators watch. This page is written by `make docs`.

## Of a submission
Each in a sentence. How exactly it is computed, its interval, what is left out, and how scores and ranks are made of it is
in [scores.md](scores.md).

| metric | what it is |
| --- | --- |
{submissions}
## Of the platform
What `GET /metrics` says: on `metrics_port`, where one is set, to anybody who can reach it; on the API's port with an
admin key. Each process says what it saw itself: sum counters and histograms over all. The gauges of submissions,
deployments and workers are facts of the database that each worker reads every 10 seconds, those of ids (`guanaco_database_…`) every minute: take their `max`. A
histogram also has `_bucket`, `_sum` and `_count`.

| metric | type | labels | what it is |
| --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |\n"
        for metric in Metrics().described
    )
    submissions = "".join(f"| {metric.name} | {metric.meaning} |\n" for metric in METRICS)
    return HEAD.replace("{submissions}", submissions) + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
