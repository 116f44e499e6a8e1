"""The documents keep up with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guanaco_server.settings import Settings
from scripts.document_settings import PAGE, page

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_settings_page_is_what_make_docs_writes() -> None:
    assert PAGE.read_text() == page(), "`make docs` puts this right"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_documents_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []
