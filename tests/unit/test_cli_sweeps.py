"""Sweeps on the command line: followed to their end, on the board, and as experiments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco_cli import sweeps
from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT, submission_json
from tests.unit.test_cli_watch import board, verdict

__all__ = ["profile", "server"]

SWEEP = "org-model_sweep1"
FAILURE = {"stage": "stress", "blame": "submission", "code": "too_slow", "detail": "It is slow.", "hint": None}  # fmt: skip


def sweep(*states: str) -> httpx.Response:
    submissions = [
        submission_json(
            id=f"org-model_v{number}",
            name=f"variant {number}",
            status=status,
            sweep=SWEEP,
            failure=FAILURE if status == "failed" else None,
        )
        for number, status in enumerate(states, 1)
    ]
    given = {"id": SWEEP, "name": "grid", "developer": "alice", "repo": "org/model"}
    return httpx.Response(
        200, json=given | {"revision": None, "created_at": AT, "submissions": submissions}
    )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(sweeps.time, "sleep", waits.append)
    return waits


def test_a_sweep_is_followed_by_a_line_a_change(
    server: Any, capsys: Any, looks: list[float]
) -> None:
    server(sweep("queued", "deployed"), sweep("checking", "deployed"), sweep("failed", "deployed"))
    assert run(["sweep", "show", SWEEP, "--wait"]) == 0
    said = capsys.readouterr()
    lines = [line.split()[:2] for line in said.err.splitlines()]
    assert lines[:4] == [
        ["org-model_v1", "queued"],
        ["org-model_v2", "deployed"],
        ["org-model_v1", "checking"],
        ["org-model_v1", "failed"],
    ]
    assert "It is slow." in said.out
    assert len(looks) == 2


def test_a_terminal_shows_one_table_that_changes(
    server: Any, capsys: Any, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    server(sweep("queued", "queued"), sweep("deployed", "failed"))
    assert run(["sweep", "show", SWEEP, "--wait", "--json"]) == 0
    said = capsys.readouterr()
    assert "2 queued" in said.err
    last = said.err.rpartition("state")[2]
    assert "deployed" in last
    assert "It is slow." in last
    assert json.loads(said.out)["id"] == SWEEP


def test_ctrl_c_leaves_the_sweep_running(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps.time, "sleep", interrupt)
    server(sweep("queued"))
    assert run(["sweep", "show", SWEEP, "--wait"]) == 130
    assert f"`guanaco sweep show {SWEEP} --wait` follows it" in capsys.readouterr().err


def test_a_sweep_that_is_entered_ends_by_its_variants(
    server: Any, capsys: Any, looks: list[float], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("repo: org/model\ngrid:\n  temperature: [0.5, 1.0]\n")
    script = server(sweep("queued", "queued"), sweep("deployed", "failed"))
    assert run(["sweep", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out.split() == [SWEEP]
    assert "1 deployed, 1 failed." in said.err
    sent = json.loads(script.requests[0].content)["variants"]
    assert [one["params"]["temperature"] for one in sent] == [0.5, 1.0]


def of_sweeps(*sweeps: str | None) -> httpx.Response:
    ids = [f"org-model_v{number}" for number in range(1, len(sweeps) + 1)]
    found = board(*ids).json()
    for row, name in zip(found["rows"], sweeps, strict=True):
        row["sweep"] = name
    return httpx.Response(200, json=found)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["org-model_v1", "org-model_v2 and 2 more"]),
        (["--each-variant"], [f"org-model_v{number}" for number in (1, 2, 3, 4)]),
        (["--sweep", SWEEP], [f"org-model_v{number}" for number in (2, 3, 4)]),
    ],
)
def test_the_board_shows_a_sweep_as_one_row(
    server: Any, capsys: Any, options: list[str], shown: list[str]
) -> None:
    server(of_sweeps(None, SWEEP, SWEEP, SWEEP), verdict("org-model_v1"))
    assert run(["leaderboard", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "org-model_v" in line]
    assert len(lines) == len(shown)
    assert all(name in line for name, line in zip(shown, lines, strict=True))


def test_json_has_each_variant_of_the_board(server: Any, capsys: Any) -> None:
    server(of_sweeps(None, SWEEP, SWEEP))
    assert run(["leaderboard", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3


def test_an_unknown_sweep_is_said_to_have_no_row(server: Any, capsys: Any) -> None:
    server(of_sweeps(None))
    assert run(["leaderboard", "--sweep", "other_sweep1"]) == 1
    assert "No variant of other_sweep1 is in the competition open." in capsys.readouterr().err


def test_an_experiment_is_made_of_served_variants(server: Any, capsys: Any) -> None:
    made = {
        "name": "org-model-sweep1", "state": "draft", "created_at": AT, "started_at": None, "stopped_at": None,
        "variants": [{"name": "variant-1", "model": "org-model_v1"}, {"name": "variant-3", "model": "org-model_v3"}],
    }  # fmt: skip
    script = server(sweep("deployed", "failed", "deployed"), httpx.Response(201, json=made))
    assert run(["experiments", "create", "--sweep", SWEEP]) == 0
    sent = json.loads(script.requests[1].content)
    assert sent["name"] == "org-model-sweep1"
    assert [(one["name"], one["model"]) for one in sent["variants"]] == [
        ("variant-1", "org-model_v1"),
        ("variant-3", "org-model_v3"),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "org-model_v2"], "org-model_v2 is no served submission"),
        (["--only", "org-model_v1"], "gives 1 served variants"),
    ],
)
def test_a_sweep_without_served_variants_makes_no_experiment(
    server: Any, capsys: Any, options: list[str], said: str
) -> None:
    server(sweep("deployed", "failed", "deployed"))
    assert run(["experiments", "create", "--sweep", SWEEP, *options]) == 2
    assert said in capsys.readouterr().err
