"""`guanaco whoami`, `logout`, `evaluate`, `doctor` of a light install, and filters that match nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.errors import ReportNotFound
from guanaco.profile import Profile
from guanaco_cli import doctor, installation
from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT, refused, submission_json

__all__ = ["profile", "server"]

ME = {"name": "alice", "role": "developer"}
METRICS = {
    "submission_id": "org-model_v1", "thumbs_up": 3, "thumbs_down": 1, "feedback_count": 5,
    "thumbs_up_ratio": 0.75, "interval_low": 0.3, "interval_high": 0.95, "conversation_count": 9,
    "mean_conversation_length": 6.5,
    "retention": {"value": 0.4, "low": 0.2, "high": 0.6},
}  # fmt: skip
ROW = METRICS | {
    "rank": 2, "score": 0.3, "developer": "alice", "name": "mine", "repo": "org/model",
    "status": "deployed", "created_at": AT,
}  # fmt: skip
COST = {
    "submission_id": "org-model_v1", "developer": "alice", "since": AT, "until": AT,
    "currency": "USD", "gpus_now": 1, "gpu_hours": 2.5, "cost": 5.0,
}  # fmt: skip


def test_whoami_says_who_and_where(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=ME), httpx.Response(200, json=ME))
    assert run(["whoami"]) == 0
    assert capsys.readouterr().out == "alice (developer) at http://guanaco.test\n"
    assert run(["whoami", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": "http://guanaco.test", **ME}


def test_logout_deletes_the_stored_key_also_a_broken_one(profile: Path, capsys: Any) -> None:
    profile.write_text("broken")
    assert run(["logout"]) == 0
    assert not profile.exists()
    assert Profile.load().key is None
    assert run(["logout"]) == 0
    assert "nobody is logged in" in capsys.readouterr().err


def test_logout_warns_of_a_key_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("GUANACO_API_KEY", "gk_x")
    assert run(["logout"]) == 0
    assert "GUANACO_API_KEY is set" in capsys.readouterr().err


def answers() -> tuple[httpx.Response, ...]:
    board = {"at": AT, "competition": "open", "ranking": "thumbs_up", "rows": [ROW]}
    return (
        httpx.Response(200, json=submission_json()),
        httpx.Response(200, json=METRICS),
        httpx.Response(200, json=board),
        refused(ReportNotFound("org-model_v1"), 404),
        httpx.Response(200, json=COST),
    )


def test_evaluate_shows_every_figure_of_a_submission(server: Any, capsys: Any) -> None:
    server(*answers())
    assert run(["evaluate", "org-model_v1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "rank in the open competition 2 " in shown
    assert "thumbs up 75% 30% to 95%" in shown
    assert "users back the next day 40% 20% to 60%" in shown
    assert "cost 5.00 USD" in shown
    assert "stress check" not in shown


def test_evaluate_gives_the_figures_as_json(server: Any, capsys: Any) -> None:
    server(*answers())
    assert run(["evaluate", "org-model_v1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["standing"]["rank"], found["stress"], found["cost"]["cost"]) == (2, None, 5.0)


@pytest.mark.parametrize(
    ("command", "body", "says"),
    [
        (
            "feedback org-model_v1 --rating down --bot ada",
            {"items": [], "next_cursor": None},
            "No rating matches --rating down --bot ada.",
        ),
        ("feedback org-model_v1", {"items": [], "next_cursor": None}, "None yet."),
        (
            "feedback org-model_v1 --new",
            {"items": [], "next_cursor": None},
            "No new ratings since the last",
        ),
        (
            "votes flags --competition autumn --submission x_v1",
            [],
            "No rating or duel was left out of the submission x_v1 in the competition autumn.",
        ),
        (
            "leaderboard --competition autumn",
            {"at": AT, "competition": "autumn", "ranking": "thumbs_up", "rows": []},
            "Nothing has entered the competition autumn yet.",
        ),
    ],
)
def test_a_filter_that_matches_nothing_says_so(
    command: str, body: Any, says: str, server: Any, capsys: Any
) -> None:
    server(httpx.Response(200, json=body))
    assert run(command.split()) == 0
    assert says in capsys.readouterr().err


def test_doctor_of_a_client_examines_what_a_client_needs(
    monkeypatch: pytest.MonkeyPatch, profile: Path, capsys: Any
) -> None:
    monkeypatch.setattr(doctor, "SERVER_MODULES", ("no_such_package",))
    monkeypatch.setattr(installation, "PLATFORM_MARK", "no_such_package")
    profile.unlink()
    assert run(["doctor", "--json"]) == 1
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer["install"] == "client"
    assert [one["what"] for one in answer["findings"]] == ["Python", "platform", "profile"]
    assert answer["findings"][1]["health"] == "note"
    assert answer["findings"][2]["remedy"] == "guanaco login"
    assert "cannot use a server yet" in shown.err
