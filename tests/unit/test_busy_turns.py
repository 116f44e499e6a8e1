"""Tests to which stages of a check the benchmark of a busy engine counts others' turns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from benchmarks.swap.busy import Turn, during
from guanaco.submissions import Stage, StageRun

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def turn(began_s: float, ended_s: float) -> Turn:
    return Turn(at(began_s), at(ended_s), ended_s - began_s)


def test_turns_count_for_each_stage_that_they_overlap() -> None:
    stages = [
        StageRun(run=1, stage=stage, attempts=1, started_at=at(began), ended_at=at(ended))
        for stage, began, ended in (
            (Stage.DEPLOY, 1, 3),
            (Stage.STRESS, 3, 5),
            (Stage.STRESS, 9, 10),
        )
    ]
    turns = [turn(0, 1), turn(0, 2), turn(2, 4), turn(4.5, 6), turn(6, 8), turn(9, 9.5)]
    assert during(turns, stages, Stage.DEPLOY) == [turns[1], turns[2]]
    assert during(turns, stages, Stage.STRESS) == [turns[2], turns[3], turns[5]]
