"""Hints are for everybody: they name commands, where those exist, and not requests."""

from __future__ import annotations

import ast
import errno
import re
from pathlib import Path

import pytest

from guanaco.errors import InvalidInput, requests
from guanaco.feedback_methods import _atomic_file

REQUEST = re.compile(r"\b(GET|PUT|POST|DELETE)\b")


def test_no_hint_of_a_refusal_names_a_request() -> None:
    modules = Path(requests.__path__[0]).glob("*.py")
    calls = [
        node
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.keyword)
    ]
    hints = [ast.unparse(call.value) for call in calls if call.arg == "hint"]
    assert len(hints) > 30
    assert [hint for hint in hints if REQUEST.search(hint)] == []


def test_an_export_into_no_folder_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "x.csv"
    with (
        pytest.raises(InvalidInput, match=r"x\.csv cannot be written: No such file"),
        _atomic_file(path) as unfinished,
        unfinished.open("wb"),
    ):
        raise OSError(errno.EIO, "not reached")
