"""Rows that the next version of Guanaco stores are read by this one, in every column: unknown fields, and unknown words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, String
from sqlalchemy.dialects.sqlite import dialect

from guanaco.contract import unknown_members
from guanaco_server.database.migrations import complete_metadata
from guanaco_server.database.types import EnumText, Pydantic
from tests.fixtures.stored_samples import (
    NEXT,
    closed_words,
    members,
    of_the_next_version,
    sample,
)

ROOT = Path(__file__).parents[2]
DIALECT = dialect()
COLUMNS: list[Column[Any]] = [
    column for table in complete_metadata().sorted_tables for column in table.columns
]
MODELS = [
    pytest.param(column.type, kind, id=f"{column}-{getattr(kind, '__name__', kind)}")
    for column in COLUMNS
    if isinstance(column.type, Pydantic)
    for kind in members(column.type.model)
]
ENUMS = [
    pytest.param(column.type, id=str(column))
    for column in COLUMNS
    if isinstance(column.type, EnumText)
]

FIXED_WORDS = {  # a prompt with another word there is read as an UnknownPrompt
    "PromptFile.render",
    "PromptPart.role",
    "PoetPrompt.render",
}
REQUESTED = {  # words of a request or of this process, not of a row
    "guanaco/calls/accounts.py": {"Role(role)"},
    "server/guanaco_server/artifacts/checking/child.py": {"SubmissionKind(asked['kind'])"},
    "server/guanaco_server/duels/service.py": {"DuelOutcome(request.outcome)"},
    "server/guanaco_server/web/pages/developer/submission_log.py": {"Level(level)"},
    "server/guanaco_server/web/pages/developer/submissions.py": {"Status(name)"},
}
SHORT_TEXTS = {  # columns of few characters that hold no word of an enum
    "battles.a_finish_reason",  # vLLM's word, shown as it is
    "battles.b_finish_reason",
    "battles.continues_from",  # a or b
    "battles.own_side",
    "deployments.trouble",  # shown and counted as it is
    "duels.continues_from",
    "experiment_exposures.unit",  # a hash
    "gateway_places.gateway",  # a process
    "gpu_intervals.gpu_type",
    "messages.finish_reason",
    "service_counts.measure",
    "vote_flags.rule",  # shown as it is
    "webhook_deliveries.claim",  # a token
}


@pytest.mark.parametrize(("column", "kind"), MODELS)
def test_row_of_the_next_version_loses_nothing(column: Pydantic, kind: Any) -> None:
    written = of_the_next_version(kind, sample(kind))
    read = column.process_result_value(written, DIALECT)
    assert read is not None
    stored = column.process_bind_param(read, DIALECT)
    for mark in (NEXT, "of_the_next_version"):
        assert json.dumps(stored).count(mark) == json.dumps(written).count(mark)
    assert column.process_result_value(stored, DIALECT) == read
    words = json.dumps(written).count(f'"{NEXT}"')
    assert len(list(unknown_members(read))) == words


@pytest.mark.parametrize("column", ENUMS)
def test_word_of_the_next_version_is_written_back(column: EnumText) -> None:
    read = column.process_result_value(NEXT, DIALECT)
    assert read is not None
    assert read.is_unknown
    assert column.process_bind_param(read, DIALECT) == NEXT


def test_what_is_stored_has_no_fixed_list_of_words() -> None:
    places = {
        place
        for column in COLUMNS
        if isinstance(column.type, Pydantic)
        for place in closed_words(column.type.model, str(column))
    }
    assert places == FIXED_WORDS, "an OpenEnum takes a word of the next version, a Literal fails"


def test_words_of_rows_are_read_not_called() -> None:
    """``Status(row.status)`` raises ValueError on a word of the next version; ``Status.read`` does not."""
    found = {path: called for path in _sources() if (called := set(_calls_of_enums(path)))}
    assert {str(path.relative_to(ROOT)): called for path, called in found.items()} == REQUESTED


def test_words_are_stored_in_columns_of_their_enum() -> None:
    short = {
        str(column)
        for column in COLUMNS
        if type(column.type) is String
        and 0 < (column.type.length or 0) <= 32
        and not column.name.endswith(("id", "token", "_by"))
    }
    assert short == SHORT_TEXTS, "use EnumText for a word, or name the column here"


def _sources() -> list[Path]:
    return [
        path
        for folder in ("guanaco", "server", "cli")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def _open_enums() -> set[str]:
    return {
        node.name
        for path in _sources()
        if "OpenEnum" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(one, ast.Name) and one.id == "OpenEnum" for one in node.bases)
    }


OPEN_ENUMS = _open_enums()
CALL = re.compile(rf"\b({'|'.join(OPEN_ENUMS)})\(")


def _calls_of_enums(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not CALL.search(text):
        return
    tree = ast.parse(text)
    foreign = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("guanaco")
        for name in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in OPEN_ENUMS - foreign:
                yield ast.unparse(node)
