from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from guanaco.chat import Reply
from guanaco.leaderboard import Leaderboard
from guanaco.submissions import StressReport, Submission, SubmissionEvent
from guanaco_cli.demo import command, running_platform
from guanaco_cli.demo.timings import DemoReply, Journey, rows_of, timings_of
from guanaco_cli.main import run
from guanaco_cli.progress import LiveProgress
from tests.fixtures.wire import AT, event_json, reply_json, submission_json

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = {
    "resolve": 0.5,
    "check": 0.5,
    "serialize": 3.0,
    "deploy": 40.0,
    "stress": 8.0,
    "publish": 0.0,
}


def journey() -> Journey:
    stages = [
        {"run": run, "stage": stage, "attempts": 1, "started_at": START, "ended_at": START + timedelta(seconds=took), "outcome": "done"}
        for run in (1, 2)
        for stage, took in SECONDS.items()
    ]  # fmt: skip
    report = {
        "is_passed": True, "reasons": [], "at": AT, "duration_s": 6, "offered_rate": 2, "requests": 12, "errors": 0,
        "error_rate": 0, "output_tokens": 99, "tokens_per_second": 16.5, "ttft_ms": None, "tpot_ms": None, "e2e_ms": None,
    }  # fmt: skip
    return Journey(
        submission=Submission.model_validate(submission_json(run=2, stages=stages)),
        report=StressReport.model_validate(report),
        first_reply=DemoReply("conv_1", "org-model_v1", Reply.model_validate(reply_json())),
        feedback=[],
        leaderboard=Leaderboard(at=START, rows=[]),
        live_after_s=53.0,
        replied_after_s=54.0,
        feedback_after_s=54.5,
    )


def test_platform_share_excludes_model_server_start_and_stress_window() -> None:
    figures = timings_of(journey())
    assert figures.submit_to_feedback_s == 54.5
    assert figures.model_server_start_s == 40.0
    assert figures.platform_share_s == pytest.approx(54.5 - 40.0 - 6.0)
    assert figures.stages_s == SECONDS


def test_the_table_has_every_stage_and_the_total() -> None:
    rows = dict(rows_of(timings_of(journey())))
    assert [f"stage {stage}" in rows for stage in SECONDS] == [True] * 6
    assert rows["submit to first feedback"] == "54.5 s"
    assert rows["between the stages"] == "1.0 s"
    assert rows["stage publish"] == "< 0.1 s"


def test_demo_without_engine_environment_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("GUANACO_ENGINE_PYTHON", str(tmp_path / "none"))
    assert run(["demo", "--exit"]) == 1
    assert "make engine" in capsys.readouterr().err


def test_a_demo_never_sees_the_users_own_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GUANACO_URL", "GUANACO_API_KEY", "GUANACO_PROFILE", "GUANACO_CONFIG"):
        monkeypatch.setenv(name, "the user's own")
    environment = running_platform._environment(Path("/scratch/profile.json"), {"GUANACO_X": "1"})
    assert "the user's own" not in environment.values()
    assert environment["GUANACO_PROFILE"] == "/scratch/profile.json"
    assert environment["GUANACO_X"] == "1"
    assert "127.0.0.1" in environment["NO_PROXY"]


def test_temporary_folder_is_removed_and_a_named_one_stays(tmp_path: Path) -> None:
    with command._folder(None) as scratch:
        (scratch / "file").touch()
    assert not scratch.exists()
    with command._folder(tmp_path / "kept") as kept:
        kept.mkdir()
    assert kept.exists()


def test_live_display_forgets_the_stages_of_an_earlier_run() -> None:
    progress = LiveProgress(is_verbose=False)
    for seq, (stage, data) in enumerate(
        [
            ("resolve", {"outcome": None}),
            ("resolve", {"outcome": "done", "duration_s": 1.0}),
            ("check", {"outcome": None}),
            ("check", {"outcome": "failed", "duration_s": 2.0}),
            ("resolve", {"outcome": None}),
        ]
    ):
        progress.show(
            SubmissionEvent.model_validate(event_json(seq, kind="stage", stage=stage, data=data))
        )
    assert progress.render().row_count == 6
    assert [str(stage) for stage in progress._rows] == ["resolve"]
