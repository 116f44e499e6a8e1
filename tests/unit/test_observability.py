"""Metrics keep to Prometheus' conventions and their page; log lines carry ids and no secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from guanaco.errors import ModelTimedOut
from guanaco_server.observability.exposition import Exposition, scrape
from guanaco_server.observability.logs import JsonFormatter, Repeats, TextFormatter
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.redaction import Redaction
from guanaco_server.observability.scope import request_ids, scope
from guanaco_server.settings import Settings
from guanaco_server.web.views.metric_tiles import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(guanaco_\w+)` \| (\w+) \| (.*?) \| (.+?) \|$", re.M)
SECRETS = ["correct-horse-battery", "s3-secret-value"]
SIGNED = "https://s3.example.com/b/k?X-Amz-Credential=AKIA1&X-Amz-Signature=0123abcd&x=1"


def test_the_metrics_page_lists_every_metric_as_it_is() -> None:
    written = [
        (name, kind, labels, text) for name, kind, labels, text in ROW.findall(PAGE.read_text())
    ]
    assert written == [
        (metric.name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for metric in Metrics().described
    ]


def test_names_follow_prometheus_conventions() -> None:
    for metric in Metrics().described:
        assert re.fullmatch(r"guanaco_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")


def test_two_platforms_in_one_process_share_no_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.note_vote(True)
    assert value(one, "guanaco_votes_total", thumb="up") == 1
    assert value(other, "guanaco_votes_total", thumb="up") is None


def test_a_reply_counts_once_by_how_it_ended() -> None:
    metrics = Metrics()
    with metrics.reply("acme-tiny_v1") as reply:
        assert value(metrics, "guanaco_gateway_in_flight_requests") == 1
        reply.note_text()
        reply.note_text()
        reply.note_end(10, 4)
    with metrics.reply("acme-tiny_v1"):
        pass
    with pytest.raises(ModelTimedOut), metrics.reply("acme-tiny_v1"):
        raise ModelTimedOut("acme-tiny_v1", 5)
    for outcome in ("ok", "abandoned", "model_timed_out"):
        assert value(metrics, "guanaco_gateway_requests_total", outcome=outcome) == 1
    assert value(metrics, "guanaco_gateway_first_token_seconds_count") == 1
    assert value(metrics, "guanaco_gateway_tokens_total", direction="completion") == 4
    assert value(metrics, "guanaco_gateway_in_flight_requests") == 0


def test_json_lines_carry_the_ids_of_whose_work_it_is() -> None:
    formatter = JsonFormatter(Redaction([]))
    with scope(request_id="r1"), scope(submission_id="acme-tiny_v1"):
        line = json.loads(formatter.format(record("went %s", "well")))
    assert line["message"] == "went well"
    assert (line["request_id"], line["submission_id"], line["level"]) == (
        "r1",
        "acme-tiny_v1",
        "info",
    )
    assert "request_id" not in json.loads(formatter.format(record("later")))


def test_the_same_warning_is_written_once_a_minute_and_counted() -> None:
    repeats = Repeats()

    def said(at: float, submission_id: str = "acme-tiny_v1", level: int = logging.WARNING) -> str:
        found = logging.LogRecord("loop", level, "", 0, "no %s", ("database",), None)
        found.created = at
        with scope(submission_id=submission_id):
            return found.getMessage() if repeats.filter(found) else ""

    assert [said(at) for at in (0.0, 1.0, 59.0)] == ["no database", "", ""]
    assert said(2.0, "another_v1") == "no database"
    assert [said(3.0, level=logging.INFO) for _ in range(2)] == ["no database"] * 2
    assert said(61.0) == "no database (repeated 2 times since)"
    assert said(122.0) == "no database"


@pytest.mark.parametrize(
    "formatter", [JsonFormatter(Redaction(SECRETS)), TextFormatter(Redaction(SECRETS))]
)
def test_no_secret_is_written(formatter: logging.Formatter) -> None:
    try:
        raise OSError(f"connecting to postgresql://guanaco:hunter22@db/guanaco with {SECRETS[0]}")
    except OSError:
        failed = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (SIGNED,), sys.exc_info())
    lines = [
        formatter.format(failed),
        formatter.format(record("key gk_abc123_" + "s" * 32 + " and hf_" + "t" * 20)),
        formatter.format(record(f"secret {SECRETS[1]}")),
    ]
    shown = "\n".join(lines)
    for secret in (*SECRETS, "hunter22", "0123abcd", "AKIA1", "s" * 32, "t" * 20):
        assert secret not in shown
    assert "gk_abc123_***" in shown


def test_every_secret_setting_is_known_to_the_logs() -> None:
    settings = Settings(pseudonym_key="pppppp", hub_token="hhhhhh", s3_secret_access_key="ssssss")  # type: ignore[arg-type]
    assert sorted(settings.secrets) == ["hhhhhh", "pppppp", "ssssss"]


def test_a_clients_request_id_is_kept_unless_it_is_odd() -> None:
    assert request_ids("abc-123").request_id == "abc-123"
    assert request_ids("two\nlines").request_id != "two\nlines"
    assert len(request_ids("").request_id) == 32


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("traceparent", "is_kept"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", True),
        (f"cc-{TRACE}-b7ad6b7169203331-01-of-a-later-version", True),
        (f"ff-{TRACE}-b7ad6b7169203331-01", False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}", False),
    ],
)
def test_a_request_of_a_trace_has_the_traces_id(traceparent: str, is_kept: bool) -> None:
    assert (request_ids("", traceparent).request_id == TRACE) is is_kept
    assert request_ids("mine", traceparent).request_id == "mine"
    assert (request_ids("mine", traceparent).trace_id == TRACE) is is_kept


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("guanaco_server.x", logging.INFO, "", 0, message, args, None)


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(scrape(metrics).decode()):
        for found in family.samples:
            if found.name == sample and found.labels == labels:
                return found.value
    return None


class HeldCollector(Collector):
    """A scrape that goes on until the test lets it end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.begun += 1
        assert self.may_end.wait(60)
        yield GaugeMetricFamily("held", "Was held.", value=self.begun)


async def test_scrapes_at_once_are_written_once_and_hold_nobody_up() -> None:
    metrics = Metrics()
    held = HeldCollector()
    held.may_end.set()
    metrics.registry.register(held)
    held.may_end.clear()
    exposition = Exposition(metrics)
    before = held.begun
    first, second = asyncio.create_task(exposition.text()), asyncio.create_task(exposition.text())
    while held.begun == before:
        await asyncio.sleep(0)  # the event loop goes on
    first.cancel()  # its client left
    held.may_end.set()
    assert b"\nheld " in await second
    assert held.begun == before + 1
    assert b"\nheld " in await exposition.text()
    assert held.begun == before + 2, "it is not kept"


def test_the_page_has_each_metric_of_a_submission() -> None:
    page = PAGE.read_text()
    assert [one.name for one in METRICS if f"| {one.name} | {one.meaning} |\n" not in page] == []
