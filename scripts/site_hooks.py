"""Hooks of MkDocs: the decisions stand in the navigation by themselves, and links out of docs/ become plain text.

The site has none of the repository's other files, so a link to one would lead nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
DECISIONS = "Decisions"
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)]+)\)")


def on_config(config: Any, **_: Any) -> Any:
    """Add every decision to the navigation's explanations."""
    found = sorted(DOCS.glob("decisions/*.md"))
    config.nav.append({DECISIONS: [path.relative_to(DOCS).as_posix() for path in found]})
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links that stay within docs/ only."""
    folder = (DOCS / page.file.src_uri).parent

    def inside(found: re.Match[str]) -> str:
        target = (folder / found[2].partition("#")[0]).resolve()
        return found[0] if target.is_relative_to(DOCS.resolve()) else found[1]

    return LINK.sub(inside, markdown)
