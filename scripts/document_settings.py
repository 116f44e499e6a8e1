"""Writes docs/settings.md from the Settings class; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from guanaco_server.settings.report import parts
from guanaco_server.settings.storage import GIB
from guanaco_server.settings.variables import REMOVED

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

Every setting of the platform. A value comes from a command-line option, else from the environment, else from
the TOML file that `GUANACO_CONFIG` names (`port = 8400`), else it is the default. Lists are JSON in the
environment: `GUANACO_ENGINE_ARGS='["--max-num-seqs", "8"]'`.

A name that is no setting stops the start, and the message names the nearest one. `guanaco settings` prints the values in
effect and where each comes from; `--changed` leaves out those that have their default.

This page is written by `make docs` from `server/guanaco_server/settings/`.
"""
REMOVED_HEAD = """
## Removed settings
These became constants. Where one is still set it has no effect: the start says so, and goes on.

| setting | what holds now |
| --- | --- |
"""
TABLE = """\
| setting | environment | default | what it is |
| --- | --- | --- | --- |
"""


def page() -> str:
    removed = "".join(f"| `{name}` | {sentence} |\n" for name, sentence in REMOVED.items())
    return HEAD + "".join(_section(part) for part in parts()) + REMOVED_HEAD + removed


def _section(part: type[BaseModel]) -> str:
    rows = (
        f"| `{name}` | `GUANACO_{name.upper()}` | {_default(field.default)} | {_cell(field.description)} |\n"
        for name, field in part.model_fields.items()
    )
    return f"\n## {part.__doc__}\n{TABLE}" + "".join(rows)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if value == Path(sys.executable):
        return "the platform's own Python"
    if isinstance(value, int) and value >= GIB and value % GIB == 0:
        return f"`{value}` ({value // GIB} GiB)"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
