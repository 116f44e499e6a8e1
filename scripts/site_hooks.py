"""Hooks of MkDocs: the decisions stand in the navigation by themselves, and links out of docs/ become plain text.

The site has none of the repository's other files, so a link to one would lead nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MERMAID = Path(__file__).parents[1] / ".venv-docs" / "mermaid.min.js"
SCRIPT = "javascripts/mermaid.min.js"
SCRIPT_TAG = re.compile(rf'<script src="[^"]*{re.escape(SCRIPT)}"></script>')
DECISIONS = "Decisions"
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)]+)\)")


def on_config(config: Any, **_: Any) -> Any:
    """Add every decision to the navigation's explanations."""
    found = sorted(DOCS.glob("decisions/*.md"))
    config.nav.append({DECISIONS: [path.relative_to(DOCS).as_posix() for path in found]})
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the script that draws diagrams, and fail without it: the theme would fetch one from another host."""
    from mkdocs.exceptions import PluginError  # type: ignore[import-not-found]
    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    if not MERMAID.exists():
        raise PluginError(f"{MERMAID} is missing: `scripts/setup-docs` fetches it.")
    files.append(File.generated(config, SCRIPT, abs_src_path=str(MERMAID)))
    return files


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Fail for a diagram that would be shown as its source; leave the script out of pages without one."""
    from mkdocs.exceptions import PluginError

    source = (DOCS / page.file.src_uri).read_text()
    drawn, wanted = output.count('<pre class="mermaid">'), source.count("```mermaid")
    if drawn != wanted or SCRIPT not in output:
        raise PluginError(f"{page.file.src_uri}: {drawn} of {wanted} diagrams are drawn.")
    return output if wanted else SCRIPT_TAG.sub("", output)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links that stay within docs/ only."""
    folder = (DOCS / page.file.src_uri).parent

    def inside(found: re.Match[str]) -> str:
        target = (folder / found[2].partition("#")[0]).resolve()
        return found[0] if target.is_relative_to(DOCS.resolve()) else found[1]

    return LINK.sub(inside, markdown)
