"""Tests what a prompt that cannot be made does in the stage check, through the real stage runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco.prompts import ChatTemplatePrompt, Prompt, PromptFile
from guanaco.submissions import Outcome, Stage, Status
from guanaco_server.database.database import Database
from tests.fixtures.pipeline import RUN, PipelineWorld, tiny_files

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
TURNS = {"name": "chat", "each": "turn", "content": "{{ message }}"}


async def checked(
    database: Database, folder: Path, formatter: Prompt, template: Any = None
) -> tuple[Outcome | None, str]:
    """The stage's outcome, and what the developer reads."""
    world = PipelineWorld(database)
    tiny_files(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": template}
    world.hub.add_repo("acme/tiny", files | {"tokenizer_config.json": json.dumps(config).encode()})
    await world.serialized(folder, formatter=formatter, status=Status.CHECKING)
    outcome = await world.runner.run(RUN, Stage.CHECK)
    await world.prompts.close()
    failure = (await world.submission()).failure
    return outcome, failure.detail if failure else ""


async def test_a_chat_template_that_the_repo_has_passes(database: Database, tmp_path: Path) -> None:
    outcome = await checked(database, tmp_path / "repo", ChatTemplatePrompt(), TEMPLATE)
    assert outcome == (Outcome.DONE, "")


@pytest.mark.parametrize(
    ("formatter", "template", "says"),
    [
        (ChatTemplatePrompt(), None, "The model's repo has no chat template."),
        (ChatTemplatePrompt(), LOOP, "The model's chat template cannot be rendered: it takes more than 500,000 steps."),
        (
            PromptFile.model_validate({"parts": [{"name": "mine", "content": LOOP}, TURNS]}),
            None,
            "The prompt file's part 'mine' cannot be rendered: it takes more than 500,000 steps.",
        ),
        (
            PromptFile.model_validate({"parts": [{"name": "mine", "content": "{{ nmae }}"}, TURNS]}),
            None,
            "The prompt file's part 'mine' cannot be rendered: 'nmae' is undefined.",
        ),
    ],
    ids=["none", "loop", "part-loop", "part-unknown"],
)  # fmt: skip
async def test_a_prompt_that_cannot_be_made_fails_with_one_sentence(
    database: Database, tmp_path: Path, formatter: Prompt, template: Any, says: str
) -> None:
    outcome = await checked(database, tmp_path / "repo", formatter, template)
    assert outcome == (Outcome.FAILED, says)
