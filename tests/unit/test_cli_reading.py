"""Commands that only read."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import pytest

from guanaco_cli.main import run
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import (
    AT,
    event_json,
    feedback_json,
    sse,
    submission_events,
    submission_json,
)

__all__ = ["profile", "server"]


def test_status_shows_stages_failure_and_blame(server: Any, capsys: Any) -> None:
    stages = [
        {"run": 1, "stage": "resolve", "attempts": 1, "started_at": AT, "ended_at": "2026-01-02T03:04:06.5Z", "outcome": "done"},
        {"run": 1, "stage": "check", "attempts": 2, "started_at": AT, "ended_at": None, "outcome": None},
    ]  # fmt: skip
    server(httpx.Response(200, json=submission_json(status="checking", stages=stages)))
    assert run(["status", "org-model_v1"]) == 0
    shown = capsys.readouterr().out
    assert "1.5 s" in shown
    assert "running" in shown
    assert "560.0 k" in shown
    assert "dtype" not in shown
    assert "quantized" not in shown


def test_status_shows_what_is_not_the_default_of_the_weights(server: Any, capsys: Any) -> None:
    kind = {"dtype": "float16", "quantization": "int8"}
    base = {"base_repo": "org/base", "base_commit": "beef"}
    server(httpx.Response(200, json=submission_json(**kind, **base)))
    assert run(["status", "org-model_v1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["dtype", "float16"] in lines
    assert ["quantized", "int8"] in lines
    assert ["base", "org/base", "at", "beef"] in lines


COST = {
    "submission_id": "x", "developer": "alice", "gpu_hours": 4, "cost": 12, "since": AT, "until": AT,
    "currency": "USD", "gpus_now": 2,
}  # fmt: skip
RECIPE = {"gpu_type": "H100", "gpu_count": 2, "tensor_parallel": 2, "max_model_len": 2_048}
EXPERIMENT = {
    "name": "prompts", "state": "running", "created_at": AT, "started_at": AT, "stopped_at": None,
    "variants": [{"name": "a"}, {"name": "b", "model": "x_v1", "params": {"top_k": 3}}],
}  # fmt: skip
RESULTS = {
    "variant": "a", "users": 2, "conversations": 3, "thumbs_up": 1, "thumbs_down": 1,
    "thumbs_up_ratio": {"value": 0.5, "low": 0.1, "high": 0.9}, "thumbs_up_difference": None,
    "conversation_length": {"value": 4.0}, "reply_ms": None,
}  # fmt: skip
COMPETITION = {
    "id": "autumn", "name": "Autumn", "starts_at": AT, "ends_at": None, "frozen_at": AT, "ranking": "combined",
    "entry": {"max_parameters": 13_000_000_000, "per_developer": 3, "submitted_within": True},
    "assignment": {"kind": "adaptive", "newest_until": 20, "weights": {"org-model_v1": 2}},
}  # fmt: skip
FLAG = {
    "feedback_id": "fb_1", "submission_id": "x", "competition": "autumn", "rule": "burst", "evidence": "200 in a minute",
    "at": AT, "lifted_at": None, "allowed_at": None, "allowed_by": None,
}  # fmt: skip
CHECK = {"competition": "autumn", "sha256": "beef", "recomputed_sha256": "beef", "is_same": True}
ALERT = {
    "name": "daily_spend",
    "severity": "critical",
    "sentence": "GPUs have cost 12.",
    "began_at": AT,
    "ended_at": None,
}
ALERTS = {
    "firing": [ALERT], "ended": [ALERT | {"ended_at": AT}],
    "checks": [{"name": "daily_spend", "severity": "critical", "is_firing": True, "value": "12.00 USD", "compared": None, "sentence": "x"}],
    "messages": [{
        "id": 1, "kind": "test", "alert": None, "state": "delivered", "attempts": 1, "created_at": AT, "last_attempt_at": AT,
        "next_attempt_at": None, "last_result": "answered 200",
    }],
}  # fmt: skip
SERVICE_LEVEL = {
    "target": 0.9995, "budget": 5.0, "budget_left": -0.2,
    "windows": [{"name": "1h", "since": AT, "answered": 9_994, "failed": 6, "availability": 0.9994, "burn_rate": 1.2}],
}  # fmt: skip
READING = [
    (["competitions", "list"], [COMPETITION]),
    (["competitions", "show", "autumn"], COMPETITION),
    (["competitions", "recompute", "autumn"], CHECK),
    (["votes", "flags"], [FLAG]),
    (["experiments", "list"], [EXPERIMENT]),
    (["experiments", "show", "prompts"], EXPERIMENT),
    (["experiments", "results", "prompts"], {
        "experiment": "prompts", "state": "running", "at": AT, "variants": [RESULTS],
    }),
    (["recipe", "x"], {"submission_id": "x", "override": {"gpus": 8}, "served": RECIPE}),
    (["costs"], {
        "gpu_hours": 4, "cost": 12, "since": AT, "until": AT, "currency": "USD", "submissions": [COST],
        "developers": [{"developer": "alice", "gpu_hours": 4, "cost": 12, "budget": 24}],
    }),
    (["costs", "x"], COST),
    (["alerts"], ALERTS),
    (["alerts"], {"firing": [], "ended": [], "checks": [], "messages": []}),
    (["slo"], SERVICE_LEVEL),
    (["slo"], {"target": 0.9995, "windows": [], "budget": 0, "budget_left": None}),
    (["submissions"], [submission_json()]),
    (["status", "x"], submission_json()),
    (["keys", "list"], []),
    (["leaderboard"], {"at": AT, "rows": []}),
    (["feedback", "x"], {"items": [feedback_json(1)], "next_cursor": None}),
    (["stress", "x"], {
        "is_passed": True, "reasons": [], "at": AT, "duration_s": 6, "offered_rate": 2, "requests": 12, "errors": 0,
        "error_rate": 0, "output_tokens": 99, "tokens_per_second": 16.5, "ttft_ms": None, "tpot_ms": None, "e2e_ms": None,
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "answer"), READING, ids=[" ".join(case[0]) for case in READING]
)
def test_every_reading_command_prints_json_or_a_table_on_stdout(
    arguments: list[str], answer: Any, server: Any, capsys: Any
) -> None:
    server(httpx.Response(200, json=answer))
    assert run([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    json.loads(shown.out)
    assert not shown.err
    assert run(arguments) == 0
    assert capsys.readouterr().out.strip()


def test_an_experiment_shows_which_kind_of_prompt_a_variant_has(server: Any, capsys: Any) -> None:
    prompts = [{"kind": "chat_template"}, {"kind": "file", "parts": [{"name": "chat", "each": "turn", "content": "x"}]}]  # fmt: skip
    variants = [{"name": f"v{n}", "formatter": prompt} for n, prompt in enumerate(prompts)]
    server(httpx.Response(200, json=EXPERIMENT | {"variants": variants}))
    assert run(["experiments", "show", "prompts"]) == 0
    shown = capsys.readouterr().out
    assert "the model's chat template" in shown
    assert "prompt file" in shown


def test_an_experiment_that_takes_nobody_says_why(server: Any, capsys: Any) -> None:
    obstacles = [
        {"variant": "b", "model": "org-b_v1", "reason": "asleep", "detail": "org-b_v1 sleeps."},
        {"variant": None, "model": None, "reason": "yawning", "detail": "A newer reason."},
    ]
    blocked = EXPERIMENT | {"obstacles": obstacles}
    results = {"experiment": "prompts", "state": "running", "at": AT, "variants": [RESULTS]}
    server(
        httpx.Response(200, json=[blocked]),
        httpx.Response(200, json=blocked),
        httpx.Response(200, json=results | {"obstacles": obstacles}),
    )
    for command in (["list"], ["show", "prompts"], ["results", "prompts"]):
        assert run(["experiments", *command]) == 0
        shown = capsys.readouterr()
        assert "prompts takes nobody now" in shown.err
        assert "b: org-b_v1 sleeps." in shown.err
        assert "- A newer reason." in shown.err
        assert ("takes nobody now" in shown.out) == (command == ["list"])


def test_logs_show_debug_lines_only_when_asked_for(server: Any, capsys: Any) -> None:
    body = submission_events(1) + sse(
        "log", event_json(2, level="debug", message=f"deep {HOSTILE}"), 2
    )
    script = server(httpx.Response(200, content=body))
    assert run(["logs", "x"]) == 0
    assert "deep" not in capsys.readouterr().out
    assert run(["logs", "x", "-f", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "debug: deep" in shown
    assert is_safe(shown)
    assert run(["logs", "x", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["message"] == f"deep {HOSTILE}"
    assert is_safe(lines[1])
    assert [request.url.query for request in script.requests] == [
        b"follow=false",
        b"",
        b"follow=false",
    ]


def test_feedback_cannot_drive_the_terminal(server: Any, capsys: Any) -> None:
    page = {"items": [feedback_json(1, text=HOSTILE, user=HOSTILE)], "next_cursor": None}
    server(httpx.Response(200, json=page))
    for form in ([], ["--csv"], ["--json"]):
        assert run(["feedback", "x", *form]) == 0
        assert is_safe(capsys.readouterr().out)
    assert run(["feedback", "x"]) == 0
    assert "[bold]x[/bold]" in capsys.readouterr().out


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", " =", "\uff1d"])
def test_a_csv_cell_is_never_a_formula(start: str, server: Any, capsys: Any) -> None:
    text = f"{start}HYPERLINK(A1)"
    message = {"id": "m", "sender": "user", "content": 'hi, "you"', "at": AT}
    page = {"items": [feedback_json(1, text=text, messages=[message])], "next_cursor": None}
    server(httpx.Response(200, json=page))
    assert run(["feedback", "x", "--csv"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert row["text"] == f"'{text}"
    assert row["messages"] == 'user: hi, "you"'


def test_submissions_are_filtered_by_status(server: Any, capsys: Any) -> None:
    rows = [
        submission_json(id="a_v1", status="deployed"),
        submission_json(id="b_v1", status="failed"),
    ]
    server(httpx.Response(200, json=rows))
    assert run(["submissions", "--status", "FAILED"]) == 0
    out = capsys.readouterr().out
    assert "b_v1" in out
    assert "a_v1" not in out
    server(httpx.Response(200, json=rows))
    assert run(["submissions", "--status", "queued", "--status", "torn-down"]) == 0
    assert "No submission of yours is queued or torn_down." in capsys.readouterr().err
    assert run(["submissions", "--status", "happy"]) != 0
    assert "There is no status happy." in capsys.readouterr().err
