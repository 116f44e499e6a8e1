"""The documents keep up with the code."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
import typer

from guanaco import submissions as contract
from guanaco.submissions import Status
from guanaco_cli.main import app
from guanaco_server.settings import Settings
from guanaco_server.submissions.lifecycle import SOURCES
from scripts.document_settings import PAGE, page

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "guanaco_server"
ROLES = {"api.py", "service.py", "queries.py", "tables.py", "room.py", "records.py", "loop.py"}
NO_NAMES = {"POST /api/v1/submissions", "org-my-model_v2", "tool.importlinter"}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MAP = ROOT / "docs" / "architecture.md"
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_settings_page_is_what_make_docs_writes() -> None:
    assert PAGE.read_text() == page(), "`make docs` puts this right"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_documents_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_map_names_every_room_and_entrance() -> None:
    server = ROOT / "server" / "guanaco_server"
    there = {path.name + "/" * path.is_dir() for path in server.iterdir() if _is_code(path)}
    block = MAP.read_text().split("```\nguanaco/ ")[1].split("```")[0]
    assert set(re.findall(r"^  (\w+(?:/|\.py)) ", block, re.MULTILINE)) == there


def test_the_map_names_every_sub_room_and_no_other() -> None:
    for room, described in _rooms_of_the_map().items():
        folder = SERVER / room
        there = {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}
        assert set(re.findall(r"(?<![\w/])(\w+)/(?![\w/])", described)) == there, room
        files = re.findall(r"(?<![\w/])(\w+\.py)", described)
        assert [file for file in files if not (folder / file).is_file()] == [], room


def test_everything_that_the_map_names_exists() -> None:
    """A name in backticks is a file or a folder, a class, a setting, a status, a command or a make target."""
    named = set(re.findall(r"`([^`\n]+)`", MAP.read_text()))
    named -= ROLES | NO_NAMES | set(Settings.model_fields) | {status.value for status in Status}
    roots = (ROOT, SERVER, SERVER / "submissions")
    files = {name for name in named if any((root / name).exists() for root in roots)}
    classes = {name for name in named if hasattr(contract, name)}
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = {name for name in named if name.removeprefix("guanaco ") in known}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {name for name in named if name.removeprefix("make ") in targets}
    assert named - files - classes - commands - made == set()


def test_files_with_a_role_are_where_the_map_says() -> None:
    for role in ROLES:
        assert len(list(SERVER.rglob(role))) > 3, role
    chain = re.search(r"settings → ([^\n]+)", MAP.read_text())
    assert chain is not None
    assert all((SERVER / "assembly" / name).is_file() for name in chain[1].split(" → "))


def test_the_map_draws_the_transitions_of_the_lifecycle() -> None:
    """Every transition that is drawn is allowed; a rollout that begins does not change the status."""
    ends = {"ended": {Status.FAILED, Status.CANCELLED}}
    drawn = re.findall(r"^    (\w+) --> (\w+)", MAP.read_text(), re.MULTILINE)
    for before, after in drawn:
        froms = ends.get(before) or {Status(before)}
        tos = ends.get(after) or {Status(after)}
        for one, other in product(froms, tos):
            assert one == other or one in SOURCES[other], f"{one} --> {other}"
    assert {name for pair in drawn for name in pair} - {"ended", "failed"} == {
        status.value for status in Status if status not in ends["ended"]
    }


def _rooms_of_the_map() -> dict[str, str]:
    """The folders of the server that the map describes, each with its text without links."""
    block = MAP.read_text().split("```\nguanaco/ ")[1].split("```")[0]
    found = re.findall(r"^  (\w+)/ +(.+)$", re.sub(r"\]\([^)]*\)", "]", block), re.MULTILINE)
    return {room: text.replace("A/B", "") for room, text in found}


def _is_code(path: Path) -> bool:
    return path.name not in ("__init__.py", "__pycache__", "py.typed")
