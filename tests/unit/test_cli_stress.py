"""`guanaco stress`: its plots."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest

from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT

__all__ = ["profile", "server"]

LATENCY = {"p50": 100.0, "p95": 300.0, "p99": 450.0, "max": 500.0}
LIMITS = {"ttft_ms": 250.0, "tpot_ms": 1_000.0, "e2e_ms": 9_000.0, "error_rate": 0.1}
BINS = [
    {"upper_ms": 100.0, "count": 0},
    {"upper_ms": 200.0, "count": 10},
    {"upper_ms": 300.0, "count": 0},
    {"upper_ms": 400.0, "count": 1},
]


def report(**changes: Any) -> httpx.Response:
    body = {
        "is_passed": True,
        "reasons": [],
        "at": AT,
        "duration_s": 20.0,
        "offered_rate": 2.0,
        "requests": 40,
        "errors": 0,
        "error_rate": 0.0,
        "output_tokens": 640,
        "tokens_per_second": 32.0,
        "ttft_ms": LATENCY,
        "tpot_ms": LATENCY,
        "e2e_ms": LATENCY,
    }
    return httpx.Response(200, json=body | changes)


def bars(out: str) -> list[str]:
    return [line for line in out.splitlines() if "█" in line or "─ allowed" in line]


def test_a_histogram_is_drawn_with_its_threshold_between_the_bins(server: Any, capsys: Any) -> None:
    server(report(ttft_histogram=BINS, tpot_ms=None, thresholds=LIMITS))
    assert run(["stress", "org-model_v1"]) == 0
    out = capsys.readouterr().out
    plotted = out[out.index("95 % may take") :].splitlines()[1:]
    assert [line.split()[:3] for line in plotted] == [
        ["<", "200", "ms"],
        ["250", "ms", "─" * 50],
        ["<", "400", "ms"],
    ]
    assert plotted[0].count("█") == 50
    assert plotted[2].count("█") == 5
    assert "\x1b" not in out


def test_a_threshold_beyond_all_bins_is_drawn_after_them(server: Any, capsys: Any) -> None:
    server(report(tpot_histogram=BINS, ttft_ms=None, thresholds=LIMITS))
    assert run(["stress", "org-model_v1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["1,000", "ms"]


def test_percentiles_without_a_histogram_are_bars_with_the_threshold(
    server: Any, capsys: Any
) -> None:
    server(report(thresholds=LIMITS))
    assert run(["stress", "org-model_v1"]) == 0
    plotted = [line for line in bars(capsys.readouterr().out) if line.strip().startswith("p95")]
    assert [line.index("┃") - 13 for line in plotted] == [25, 49]
    assert plotted[0].count("█") == 29  # 300 of 500 ms, and the mark in the place of one


def test_an_older_report_without_thresholds_or_histograms_is_drawn_too(
    server: Any, capsys: Any
) -> None:
    server(report())
    assert run(["stress", "org-model_v1"]) == 0
    out = capsys.readouterr().out
    assert len(bars(out)) == 8
    assert "┃" not in out


def test_a_report_without_latencies_has_no_plot(server: Any, capsys: Any) -> None:
    server(report(ttft_ms=None, tpot_ms=None, e2e_ms=None))
    assert run(["stress", "org-model_v1"]) == 0
    assert bars(capsys.readouterr().out) == []


def test_colours_are_there_on_a_terminal_only(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    server(report(ttft_histogram=BINS, thresholds=LIMITS), report(thresholds=LIMITS))
    assert run(["stress", "org-model_v1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("\x1b[32m") and "< 200 ms" in line for line in lines)
    assert any(line.startswith("\x1b[31m") and "< 400 ms" in line for line in lines)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["stress", "org-model_v1"]) == 0
    assert "\x1b[3" not in capsys.readouterr().out


def test_json_is_the_report(server: Any, capsys: Any) -> None:
    server(report(ttft_histogram=BINS))
    assert run(["stress", "org-model_v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ttft_histogram"] == BINS


def test_loads_and_requests_are_tables(server: Any, capsys: Any) -> None:
    load = {"rate": 15.0, "requests": 60, "errors": 0, "ttft_ms": LATENCY, "e2e_ms": LATENCY}
    loads = [
        load | {"is_borne": True},
        load | {"rate": 30.0, "is_borne": False, "why": "replies wait longer and longer"},
    ]
    trace = [{"due_s": 0.5, "ttft_ms": 12.0, "e2e_ms": 90.0}, {"due_s": 0.7, "error": "refused"}]
    server(report(loads=loads, trace=trace, capacity=9, confidence=0.954))
    assert run(["stress", "org-model_v1", "--requests"]) == 0
    out = capsys.readouterr().out
    assert "passed (95% sure): 40 requests" in out
    assert "no: replies wait longer and longer" in out
    assert "It bore 9 replies under way at once." in out
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("0.")]
    assert [(row[0], row[-1]) for row in rows] == [("0.50", "0"), ("0.70", "refused")]


def test_capacity_of_several_candidates_is_in_sequences(server: Any, capsys: Any) -> None:
    load = {"rate": 1.0, "requests": 60, "errors": 0, "ttft_ms": None, "e2e_ms": LATENCY}
    trace = [{"due_s": 0.5, "e2e_ms": 90.0}]
    loads = [load | {"is_borne": True}]
    server(report(loads=loads, trace=trace, capacity=32, candidates=16))
    assert run(["stress", "org-model_v1", "--requests"]) == 0
    expected = "It bore 32 sequences under way at once; each reply has 16, one for each candidate."
    assert expected in capsys.readouterr().out


def test_older_report_says_that_it_lists_no_requests(server: Any, capsys: Any) -> None:
    server(report())
    assert run(["stress", "org-model_v1", "--requests"]) == 0
    assert "older check" in capsys.readouterr().out
