"""Tests of scripts/lint_prose.py, which `make lint` runs over the tree, and of the SDK's docstrings."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_prose", ROOT / "scripts" / "lint_prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def found(prose: ModuleType, words: str, kind: str = "docstring") -> list[str]:
    return [each.rule for each in prose.findings_of(prose.Text("a.py:1", words, kind))]


@pytest.mark.parametrize(
    "words",
    [
        "Whether it is there.",
        "Of two callers one gets it.",
        "None without a rating.",
        "What it costs.",
        "Without the submissions of no weight.",
        "A user may change her vote.",
        "The config is written anew.",
        "Nothing happened. Of the rest, one is left.",
    ],
)
def test_fragments_and_riddles_are_found(prose: ModuleType, words: str) -> None:
    assert found(prose, words)


@pytest.mark.parametrize(
    "words",
    [
        "Return whether it is there.",
        "Bytes of the file.",
        "Without a row, nothing runs.",
        "One of two callers gets it.",
        "A user may change their vote.",
        "Call `his_name` first.",
    ],
)
def test_whole_sentences_pass(prose: ModuleType, words: str) -> None:
    assert not found(prose, words)


def test_long_sentences_and_names_are_found(prose: ModuleType) -> None:
    assert found(prose, "word " * 41, "document")
    assert not found(prose, "word " * 30 + "; " + "word " * 30, "document")
    assert found(prose, "a_b_c_d_e_f_g_h_i_j_k", "test")


def test_every_kind_of_text_is_read(prose: ModuleType, tmp_path: Path) -> None:
    python = '"""Whose module."""\n# Whose comment\nSENTENCE = "Whose message is this one"\nA = 1  # Whose end\n'
    texts = list(prose._of_python("guanaco/a.py", python))
    assert [text.kind for text in texts] == ["docstring", "string", "comment", "comment"]
    [page] = prose._of_page("a.html", '{# Whose note #}<p title="Whose title is it">x</p>')
    assert page.words == "Whose title is it"
    document = "# A head\n\nWhose text\nis this.\n\n- Whose item.\n\n```\nWhose code.\n```\n"
    assert [text.words for text in prose._of_document("a.md", document)] == [
        "Whose text is this.",
        "Whose item.",
    ]


def test_each_exception_is_a_file_of_the_tree(prose: ModuleType) -> None:
    assert all((ROOT / name).is_file() for name in prose.SKIPPED)


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
