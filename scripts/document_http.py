"""Writes the OpenAPI document from the routes, and docs/http-reference.md from it; a test fails when they differ. Usage: make docs

docs/http-api.md explains the API; this page lists every call of it with its fields, its answers and a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from guanaco_server.http import api_document
from guanaco_server.web.views import api_reference
from guanaco_server.web.views.api_reference import (
    ApiReference,
    CallShown,
    FieldShown,
    SchemaShown,
    TypePart,
)

PAGE = Path(__file__).parents[1] / "docs" / "http-reference.md"
HEAD = """\
# HTTP reference

Every call of the HTTP API, with its fields, its answers and a command. The [HTTP API](http-api.md) explains how to use it, and
[troubleshooting](troubleshooting.md) has each error's cause and cure. A platform serves the same at `/docs`, and the OpenAPI document at `/openapi.json`.

This page is written by `make docs` from that document.
"""
MARKUP = re.compile(r"([|<>\\[\\]*])")


def text_of(document: Mapping[str, Any]) -> str:
    """Return the document as it is kept: a line for each value, so that a change of the API shows as one."""
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def page(document: Mapping[str, Any]) -> str:
    reference = api_reference.read(document)
    parts = [HEAD]
    for room in reference.rooms:
        parts.append(f"\n## {room.name}\n{_cell(room.about)}\n")
        parts += (_call(call) for call in room.calls)
    parts.append(_errors(reference))
    parts.append("\n## Schemas\n")
    parts += (_schema(schema) for schema in reference.schemas)
    return "".join(parts)


def _call(call: CallShown) -> str:
    lines = [f"\n### {_cell(call.summary)}\n`{call.method} {call.path}`\n"]
    if call.description and call.description != call.summary:
        lines.append(f"\n{_cell(call.description)}\n")
    if call.body:
        lines.append(f"\nThe body: {_type(call.body)}.\n")
    if call.fields:
        lines.append(_fields(call.fields, ("field", "in", "type", "meaning")))
    lines.append(f"\n```sh\n{call.example}\n```\n")
    lines.append("\n| answer | holds | meaning |\n| --- | --- | --- |\n")
    kept = [one for one in call.answers if one.status.startswith("2")]
    lines += (f"| {one.status} | {_type(one.type)} | {_cell(one.about)} |\n" for one in kept)
    failures = [f"[{one.status}](#errors)" for one in call.answers if one not in kept]
    lines.append(f"\nErrors: {', '.join(failures)}.\n")
    return "".join(lines)


def _errors(reference: ApiReference) -> str:
    """List what each status of an error means, which is the same for every call."""
    meanings = {
        one.status: f"| {one.status} | {_cell(one.about)} |\n"
        for room in reference.rooms
        for call in room.calls
        for one in call.answers
        if not one.status.startswith("2")
    }
    rows = "".join(meanings[status] for status in sorted(meanings))
    return f"\n## Errors\nAll have the body [ErrorBody](#schema-errorbody).\n\n| answer | meaning |\n| --- | --- |\n{rows}"


def _schema(schema: SchemaShown) -> str:
    text = f"\n### {schema.name} {{: #schema-{schema.name.lower()} }}\n{_cell(schema.about)}\n"
    if schema.type:
        text += f"\nOne of: {_type(schema.type)}.\n"
    return text + (_fields(schema.fields, ("field", "type", "meaning")) if schema.fields else "")


def _fields(fields: Sequence[FieldShown], columns: tuple[str, ...]) -> str:
    rows = [f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"]
    for field in fields:
        cells = list(_cells(field))
        rows.append(f"| {' | '.join(cells if 'in' in columns else [cells[0], *cells[2:]])} |\n")
    return "".join(rows)


def _cells(field: FieldShown) -> Iterator[str]:
    yield f"`{field.name}`" + (", required" if field.is_required else "")
    yield field.place
    yield _type(field.type)
    yield _cell(field.about)


def _type(parts: Sequence[TypePart]) -> str:
    return "".join(
        f"[{part.text}](#schema-{part.schema.lower()})" if part.schema else _escaped(part.text)
        for part in parts
    )


def _cell(text: str) -> str:
    """Write a text of the document in one line, in which no character stands for markup but a code's."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    pieces = text.split("`")
    shown = (
        MARKUP.sub(r"\\\1", piece) if place % 2 == 0 else piece.replace("|", "\\|")
        for place, piece in enumerate(pieces)
    )
    return "`".join(shown)


def main() -> None:
    from guanaco_server.database.database import Database
    from tests.fixtures.world import World

    document = World(Database("sqlite+aiosqlite:///never-opened.db")).app.openapi()
    api_document.FILE.write_text(text_of(document))
    PAGE.write_text(page(document))


if __name__ == "__main__":
    main()
