"""Each page of docs/how-to is true: its changes are made to a copy of the code, and its examples run there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.submissions import Stage

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("add-*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOOK = """
import io, json
from datetime import UTC, datetime
from rich.console import Console
from guanaco.submissions import PIPELINE_STATUSES, Stage, StageRun, Submission, SubmissionEvent
from guanaco_cli import words
from guanaco_cli.options import _complete_presets
from guanaco_cli.progress import LiveProgress
from guanaco_server.web.views.lifecycle import timeline
from guanaco_server.web.views.metric_tiles import METRICS

now = datetime.now(UTC)
scan = Stage("scan")
run = StageRun(run=1, stage=scan, attempts=1, started_at=now)
submission = Submission.model_construct(stages=[run], run=1, status=scan.spec.status)
progress = LiveProgress(is_verbose=False)
event = {"seq": 1, "at": now, "kind": "stage", "stage": "scan", "message": "", "data": {"outcome": None}}
progress.show(SubmissionEvent.model_validate(event))
shown = Console(file=io.StringIO())
shown.print(progress.render())
print(json.dumps({
    "page": [(view.name, view.sentence, view.state) for view in timeline(submission, now)],
    "terminal": [line.split()[1] for line in shown.file.getvalue().splitlines()],
    "log": words.stage_column(scan),
    "schema": StageRun.model_json_schema()["$defs"]["Stage"]["enum"],
    "statuses": PIPELINE_STATUSES,
    "presets": _complete_presets("al"),
    "tiles": [metric.key for metric in METRICS],
}))
"""


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def hunks(diff: str) -> Iterator[tuple[str, str, str]]:
    """Yield the file of each hunk, the lines that are there, and those that take their place."""
    path, old, new = "", "", ""
    for line in [*diff.splitlines(), "@@"]:
        if line.startswith(("--- ", "+++ ", "@@")):
            if old or new:
                yield path, old, new
            old = new = ""
            path = line.removeprefix("+++ b/") if line.startswith("+++ ") else path
            continue
        old += f"{line[1:]}\n" if line[:1] != "+" else ""
        new += f"{line[1:]}\n" if line[:1] != "-" else ""


def apply(page: Path, tree: Path) -> None:
    for text in blocks(page, "python"):
        path = tree / text.splitlines()[0].removeprefix("# ")
        path.write_text(text)
    for diff in blocks(page, "diff"):
        for name, old, new in hunks(diff):
            content = (tree / name).read_text()
            assert content.count(old) == 1, f"{page.name}: {name} has no one place with\n{old}"
            (tree / name).write_text(content.replace(old, new))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with the changes of all pages."""
    tree = tmp_path_factory.mktemp("how-to")
    for name in ("guanaco", "server/guanaco_server", "cli/guanaco_cli"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for page in PAGES:
        apply(page, tree)
    return tree


def run(tree: Path, code: str) -> str:
    paths = os.pathsep.join(str(tree / name) for name in (".", "server", "cli"))
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_every_change_can_be_made_and_shows_everywhere(changed: Path) -> None:
    examples = [text for page in PAGES for text in blocks(page, "py")]
    assert len(examples) == len(PAGES) == 6

    found = json.loads(run(changed, "\n".join([*examples, LOOK])))

    before = [stage.value for stage in Stage]
    after = [*before[:2], "scan", *before[2:]]
    assert [name for name, _, _ in found["page"]] == after
    assert found["page"][2] == ["scan", "Scan the weights", "running"]
    assert found["terminal"] == after
    assert found["log"] == "scan".ljust(max(len(stage) for stage in Stage))
    assert found["schema"] == after
    assert found["presets"] == ["alpaca"]
    assert "message-length" in found["tiles"]
