"""Writes docs/settings.md from the Settings class; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from guanaco_server.settings import GIB, Settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

Every setting of the platform. A value comes from a command-line option, else from the environment, else from
the TOML file that `GUANACO_CONFIG` names (`port = 8400`), else it is the default. Lists are JSON in the
environment: `GUANACO_ENGINE_ARGS='["--max-num-seqs", "8"]'`.

This page is written by `make docs` from `server/guanaco_server/settings.py`.

| setting | environment | default | what it is |
| --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{name}` | `GUANACO_{name.upper()}` | {_default(field.default)} | {_cell(field.description)} |\n"
        for name, field in _in_order().items()
    )
    return HEAD + "".join(rows)


def _in_order() -> dict[str, FieldInfo]:
    """The class's own, then those of the parts that it is put together from."""
    own = Settings.__annotations__
    fields = Settings.model_fields
    return dict(sorted(fields.items(), key=lambda field: field[0] not in own))


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
