"""A new stage of the pipeline is one entry in the table of stages, and one function."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import guanaco
from guanaco.submissions import Stage

ROOT = Path(__file__).parents[2]
ENTRY = '    SCAN = StageSpec("scan", Status.CHECKING, "Scan the weights")\n'
FUNCTION = """
from guanaco.submissions import Stage
from guanaco_server.submissions.pipeline.stages import FUNCTIONS, performs

@performs(Stage.SCAN)
async def scan(parts, run, submission):
    return {}
"""
LOOK = """
import io, json, sys
from datetime import UTC, datetime
from rich.console import Console
from guanaco.submissions import PIPELINE_STATUSES, Outcome, StageRun, Submission, SubmissionEvent
from guanaco_cli.progress import LiveProgress
from guanaco_server.submissions.lifecycle import SOURCES
from guanaco_server.submissions.pipeline.records import first_unfinished
from guanaco_server.web.lifecycle_view import timeline
from guanaco_cli import words

now = datetime.now(UTC)
run = StageRun(run=1, stage=Stage.SCAN, attempts=1, started_at=now)
submission = Submission.model_construct(stages=[run], run=1, status=Stage.SCAN.spec.status)
progress = LiveProgress(is_verbose=False)
event = {"seq": 1, "at": now, "kind": "stage", "stage": "scan", "message": "", "data": {"outcome": None}}
progress.show(SubmissionEvent.model_validate(event))
shown = Console(file=io.StringIO())
shown.print(progress.render())
print(json.dumps({
    "page": [(view.name, view.sentence, view.state) for view in timeline(submission, now)],
    "terminal": [line.split()[1] for line in shown.file.getvalue().splitlines()],
    "log": words.stage_column(Stage.SCAN),
    "comes_after_check": first_unfinished({Stage.RESOLVE: Outcome.DONE, Stage.CHECK: Outcome.DONE}),
    "schema": StageRun.model_json_schema()["$defs"]["Stage"]["enum"],
    "has_functions": sorted(FUNCTIONS) == sorted(Stage),
    "statuses": PIPELINE_STATUSES,
}))
"""


@pytest.mark.slow
def test_a_new_stage_is_one_entry_and_one_function(tmp_path: Path) -> None:
    shutil.copytree(Path(guanaco.__file__).parent, tmp_path / "guanaco")
    table = tmp_path / "guanaco" / "submissions.py"
    after = "    SERIALIZE = StageSpec("
    table.write_text(table.read_text().replace(after, ENTRY + after))

    found = json.loads(
        subprocess.run(
            [sys.executable, "-c", FUNCTION + LOOK],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )

    before = [stage.value for stage in Stage]
    after = [*before[:2], "scan", *before[2:]]
    assert [name for name, _, _ in found["page"]] == after
    assert found["page"][2] == ["scan", "Scan the weights", "running"]
    assert found["terminal"] == after
    assert found["log"] == "scan".ljust(max(len(stage) for stage in Stage))
    assert found["comes_after_check"] == "scan"
    assert found["schema"] == after
    assert found["has_functions"]
