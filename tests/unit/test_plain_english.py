"""Docstrings say what a thing does. This stands for Vale, whose package downloads the program itself from a host that CI may not reach."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("guanaco", "cli", "server", "migrations", "benchmarks", "examples", "tests")
FRAGMENT = re.compile(
    r"(As|By|For|From|How|If|Of|That|Those|To|Until|Up|What|When|Where|Whether|Which|Who|Whom|Whose|Without)\b"
)
RULE = "A docstring begins with a verb, or names the thing: `Return whether …`, not `Whether …`."


def _docstrings() -> Iterator[tuple[str, str]]:
    """Yield each docstring with its place."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, documented) and (text := ast.get_docstring(node)):
                    yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text


@pytest.mark.slow
def test_docstrings_are_no_fragments() -> None:
    found = [f"{place}: {text[:60]}" for place, text in _docstrings() if FRAGMENT.match(text)]
    assert not found, "\n".join([RULE, *found])


def test_a_fragment_is_found() -> None:
    assert FRAGMENT.match("Whether it is there.")
    assert FRAGMENT.match("By endpoint.")
    assert not FRAGMENT.match("Return whether it is there.")
    assert not FRAGMENT.match("Bytes of the file.")


def test_each_sdk_call_documents_args_returns_and_raises() -> None:
    """mkdocstrings makes the SDK's reference of these docstrings, in Google's form."""
    lacking: list[str] = []
    for path in sorted((ROOT / "guanaco" / "calls").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and path.stem != "wire" and node.name[0] != "_":
                text = ast.get_docstring(node) or ""
                taken = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
                wanted = [f"    {name}: " for name in taken]
                wanted += ["Args:"] * bool(taken)
                wanted += ["Returns:"] * ("None]" not in ast.unparse(node.returns or node))
                wanted += ["Raises:"] * (not node.name.startswith("parse_"))
                lacking += [
                    f"{path.stem}.{node.name}: {each}" for each in wanted if each not in text
                ]
    assert not lacking, "\n".join(lacking)
