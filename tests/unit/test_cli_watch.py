"""`guanaco leaderboard --watch`"""

from __future__ import annotations

import sys
from typing import Any

import httpx
import pytest

from guanaco.errors import NoModelAvailable, NotFound
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


def verdict(leader: str, *pairs: dict[str, Any], **fields: Any) -> httpx.Response:
    found = {"at": AT, "competition": "open", "ranking": "thumbs_up", "within": 0.05} | fields
    return httpx.Response(
        200, json=found | {"leader": leader, "is_decided": False, "pairs": list(pairs)}
    )


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


def test_server_away_for_a_while_leaves_the_last_table(
    server: Any, capsys: Any, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    server(board("a_v1"), refused(NoModelAvailable(), 503), board("a_v1"))
    assert run(["leaderboard", "--watch"]) == 0
    assert "Trying again" in capsys.readouterr().out


def test_without_a_terminal_it_is_printed_once(server: Any, capsys: Any) -> None:
    script = server(board("a_v1"), verdict("a_v1"))
    assert run(["leaderboard", "--watch"]) == 0
    assert len(script.requests) == 2
    said = capsys.readouterr()
    assert "a_v1" in said.out
    assert "\x1b" not in said.out
    assert "a_v1 is the only one with a score." in said.err


def test_an_older_platform_has_no_verdict(server: Any, capsys: Any) -> None:
    server(board("a_v1"), refused(NotFound("There is no such page."), 404))
    assert run(["leaderboard"]) == 0
    assert "a_v1" in capsys.readouterr().out


def test_the_verdict_is_shown_by_pairs(server: Any, capsys: Any) -> None:
    pairs: list[dict[str, Any]] = [
        {"submission_id": "b_v1", "state": "better"},
        {"submission_id": "c_v1", "state": "open", "votes": 312},
        {"submission_id": "d_v1", "state": "drawn"},
    ]
    script = server(verdict("a_v1", *pairs))
    assert run(["leaderboard", "--verdict", "--competition", "autumn"]) == 0
    assert script.requests[0].url.path.endswith("/leaderboard/verdict")
    said = capsys.readouterr()
    assert "the leader is better: settled" in said.out
    assert "not yet: about 310 more votes" in said.out
    assert "Not settled: a_v1 leads, but 2 of 3 others" in said.err
    assert run(["leaderboard", "--verdict", "--watch"]) == 2


def test_json_cannot_be_watched(capsys: Any) -> None:
    assert run(["leaderboard", "--watch", "--json"]) == 2


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [(1, 1, ""), (3, 1, "up 2"), (1, 3, "down 2"), (0, 1, "new"), (None, 2, "new"), (1, None, "")],
)
def test_a_mark_says_how_far(before: int | None, now: int | None, shown: str) -> None:
    assert mark(before, now) == shown


def test_askable_conversations_have_a_table_of_their_own(server: Any, capsys: Any) -> None:
    row = {"submission_id": "a_v1", "eligible": 5_000, "asked": 1_000, "answered": 612, "up": 400}
    ratios = {"ratio": 0.64, "low": 0.58, "high": 0.7}
    plain = {"plain_ratio": None, "plain_low": 0, "plain_high": 1}
    rows = [row | ratios | plain]
    found = {"waiting": 3, "leader": "a_v1", "is_decided": False, "worth": 1_250, "pairs": []}
    server(verdict("a_v1", asked=found | {"rows": rows}))
    assert run(["leaderboard", "--verdict"]) == 0
    said = capsys.readouterr()
    assert "64.0% (58.0% to 70.0%)" in said.out
    assert "5,000" in said.out
    assert "1,000 answers do as much as 1,250 alone" in " ".join(said.err.split())
