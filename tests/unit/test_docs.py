"""The documents keep up with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guanaco_server.settings import Settings
from scripts.document_settings import PAGE, page

ROOT = Path(__file__).parents[2]
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


def test_every_file_that_the_map_names_exists() -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.html|/))`", MAP.read_text())
    roots = (
        ROOT,
        ROOT / "server" / "guanaco_server",
        ROOT / "server" / "guanaco_server" / "submissions",
    )
    conventional = {"api.py", "service.py", "queries.py", "tables.py", "room.py"}  # a room's own
    missing = [
        name
        for name in named
        if name not in conventional and not any((root / name).exists() for root in roots)
    ]
    assert missing == []


def _is_code(path: Path) -> bool:
    return path.name not in ("__init__.py", "__pycache__", "py.typed")
