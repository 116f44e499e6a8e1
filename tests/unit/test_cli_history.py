"""`guanaco leaderboard --history`: the score's points as a table with a plot of the intervals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from guanaco_cli.main import run
from tests.fixtures.cli import profile, server

__all__ = ["profile", "server"]

BEGIN = datetime(2026, 11, 20, 8, tzinfo=UTC)


def history(*scores: tuple[float, float, float]) -> httpx.Response:
    points = [
        {
            "at": (BEGIN + timedelta(hours=hour)).isoformat(),
            "rank": 1,
            "low": low,
            "score": score,
            "high": high,
        }
        for hour, (low, score, high) in enumerate(scores)
    ]
    body = {"submission_id": "org-model_v1", "competition": "autumn", "points": points}
    return httpx.Response(200, json=body)


def test_intervals_are_drawn_on_one_scale(server: Any, capsys: Any) -> None:
    script = server(history((0.2, 0.6, 1.0), (0.5, 0.62, 0.7)))
    arguments = ["leaderboard", "--history", "org-model_v1", "--competition", "autumn"]
    assert run(arguments) == 0
    assert "competition=autumn" in str(script.requests[0].url)
    out = capsys.readouterr().out
    wide, narrow = [line for line in out.splitlines() if "2026-11-20" in line]
    assert "20.0% to 100.0%" in wide
    assert "|" + "-" * 22 + "o" in wide
    assert narrow.count("-") < wide.count("-") / 2
    assert "from 20.0% to 100.0%" in out


def test_a_long_history_is_thinned_and_whole_as_json(server: Any, capsys: Any) -> None:
    many = history(*[(900.0, 1_000.0 + hour, 1_200.0) for hour in range(100)])
    server(many, many)
    assert run(["leaderboard", "--history", "org-model_v1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "2026-11-2" in line]
    assert len(lines) == 24
    assert "1,000" in lines[0]
    assert "1,099" in lines[-1]
    assert run(["leaderboard", "--history", "org-model_v1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) == 100


def test_without_a_score_it_says_so(server: Any, capsys: Any) -> None:
    server(history())
    assert run(["leaderboard", "--history", "org-model_v1"]) == 0
    assert "has no score in the competition autumn yet" in "".join(capsys.readouterr())


def test_a_history_is_no_verdict(server: Any) -> None:
    assert run(["leaderboard", "--history", "org-model_v1", "--verdict"]) == 2
