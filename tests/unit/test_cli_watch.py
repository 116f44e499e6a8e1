"""`guanaco leaderboard --watch`"""

from __future__ import annotations

import sys
from typing import Any

import httpx
import pytest

from guanaco.errors import NoModelAvailable
from guanaco_cli import leaderboard
from guanaco_cli.leaderboard import mark
from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT, refused

__all__ = ["profile", "server"]


def board(*ids: str) -> httpx.Response:
    rows = [
        {
            "submission_id": submission_id,
            "rank": rank,
            "thumbs_up": 1,
            "thumbs_down": 0,
            "feedback_count": 1,
            "thumbs_up_ratio": 1.0,
            "interval_low": 0.2,
            "interval_high": 1.0,
            "conversation_count": 1,
            "mean_conversation_length": 4.0,
            "developer": "ada",
            "name": "x",
            "repo": "org/x",
            "status": "deployed",
            "created_at": AT,
        }
        for rank, submission_id in enumerate(ids, start=1)
    ]
    return httpx.Response(200, json={"at": AT, "rows": rows})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between looks; the third is ended by Ctrl-C."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(leaderboard.time, "sleep", sleep)
    return waits


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")


def test_ranks_that_moved_are_marked_and_ctrl_c_ends_well(
    server: Any, capsys: Any, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    script = server(
        board("a_v1", "b_v1"), board("b_v1", "c_v1", "a_v1"), board("b_v1", "c_v1", "a_v1")
    )
    chosen = ["--competition", "autumn", "--sort", "ttft"]
    assert run(["leaderboard", "--watch", "--every", "2", *chosen]) == 0
    asked = [dict(request.url.params) for request in script.requests]
    assert asked == [{"competition": "autumn", "sort": "ttft"}] * 3
    assert looks == [2, 2, 2]
    last = capsys.readouterr().out.rpartition("moved")[2].splitlines()
    shown = {name: line for line in last for name in ("a_v1", "b_v1", "c_v1") if name in line}
    assert "down 2" in shown["a_v1"]
    assert "up 1" in shown["b_v1"]
    assert "new" in shown["c_v1"]


def test_a_server_that_is_away_for_a_while_leaves_the_last_table(
    server: Any, capsys: Any, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    server(board("a_v1"), refused(NoModelAvailable(), 503), board("a_v1"))
    assert run(["leaderboard", "--watch"]) == 0
    assert "Trying again" in capsys.readouterr().out


def test_without_a_terminal_it_is_printed_once(server: Any, capsys: Any) -> None:
    script = server(board("a_v1"))
    assert run(["leaderboard", "--watch"]) == 0
    assert len(script.requests) == 1
    out = capsys.readouterr().out
    assert "a_v1" in out
    assert "\x1b" not in out


def test_json_cannot_be_watched(capsys: Any) -> None:
    assert run(["leaderboard", "--watch", "--json"]) == 2


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [(1, 1, ""), (3, 1, "up 2"), (1, 3, "down 2"), (0, 1, "new"), (None, 2, "new"), (1, None, "")],
)
def test_a_mark_says_how_far(before: int | None, now: int | None, shown: str) -> None:
    assert mark(before, now) == shown
