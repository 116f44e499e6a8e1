"""Dependencies are used at their public surface: a private name may change with any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("guanaco", "cli", "server", "migrations")
OURS = ("guanaco", "guanaco_cli", "guanaco_server", "tests")
DOCUMENTED = {"_exit", "_replace", "_asdict", "_fields", "_make"}  # os, namedtuple
# Each exception is a module with a test of its own against the version that it was made for, and a decision that says why.
ISOLATED = {
    "server/guanaco_server/engine/vllm_internals.py": "0076: vLLM has no public way to load tensors and swap them",
}


def is_private(name: str) -> bool:
    """Python's own protocols (``__name__``, and enum's ``_value_``) and what it documents are public."""
    return name.startswith("_") and not name.endswith("_") and name not in DOCUMENTED


@cache
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """A walk through all modules takes a second, and each search below needs one."""
    return tuple(ast.walk(tree))


def private_imports(tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = (node.module or "").split(".")
            if module[0] not in OURS and any(
                map(is_private, [*module, *(alias.name for alias in node.names)])
            ):
                yield ast.unparse(node)
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            if any(name[0] not in OURS and any(map(is_private, name)) for name in names):
                yield ast.unparse(node)


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Names that our own code gives to something: what it may use of other objects too."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def private_attributes(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    for node in nodes(tree):
        if (
            isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours
        ) or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr")
            and isinstance(name := node.args[1], ast.Constant)
            and is_private(str(name.value))
            and name.value not in ours
        ):
            yield ast.unparse(node)


def inherited_names(tree: ast.Module) -> Iterator[str]:
    """Names that a class takes of a dependency's class, which it is derived from, and does not define itself."""
    theirs = {
        alias.asname or alias.name.split(".")[0]
        for node in nodes(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if _module(node, alias).split(".")[0] not in OURS
    }
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef) and theirs & set(map(_root, node.bases)):
            own = set(defined_names(node))
            for used in nodes(node):
                if (
                    isinstance(used, ast.Attribute)
                    and is_private(used.attr)
                    and used.attr not in own
                    and _root(used.value) in ("self", "cls", "super")
                ):
                    yield f"{node.name}: {ast.unparse(used)}"


def _module(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return alias.name if isinstance(node, ast.Import) else node.module or ""


def _root(node: ast.AST) -> str:
    """Return the name that an expression begins with, of itself or of what is called or indexed."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.slow
def test_no_private_name_of_a_dependency_is_used() -> None:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}
    assert len(trees) > 200
    ours = {name for tree in trees.values() for name in defined_names(tree)}
    found = {
        f"{path}: {use}"
        for path, tree in trees.items()
        if path not in ISOLATED
        for use in (
            *private_imports(tree),
            *private_attributes(tree, ours),
            *inherited_names(tree),
        )
    }
    assert all((ROOT / path).is_file() for path in ISOLATED)
    assert not found, "use the dependency's public name, or isolate this in a module with a test"


def test_the_search_finds_private_names() -> None:
    tree = ast.parse(
        "import dbos._sys_db\n"
        "from huggingface_hub.utils._headers import build_hf_headers\n"
        "from dbos import _recovery\n"
        "from guanaco.calls import _get\n"
        "DBOS._dbos_instance.launch()\n"
        "getattr(client, '_pool')\n"
        "class Mine:\n    _own = 1\nMine._own\n"
    )
    assert list(private_imports(tree)) == [
        "import dbos._sys_db",
        "from huggingface_hub.utils._headers import build_hf_headers",
        "from dbos import _recovery",
    ]
    assert sorted(private_attributes(tree, set(defined_names(tree)))) == [
        "DBOS._dbos_instance",
        "getattr(client, '_pool')",
    ]


def test_the_search_finds_what_a_class_takes_of_its_base() -> None:
    tree = ast.parse(
        "import aiosqlite\nfrom guanaco.calls import Ours\n"
        "class One(aiosqlite.Connection):\n"
        "    def __init__(self):\n        self._mine = self._thread\n"
        "    def call(self):\n        return self._mine, self._conn.execute, super()._execute\n"
        "class Two(Ours):\n    def call(self):\n        return self._kept\n"
    )
    assert sorted(inherited_names(tree)) == [
        "One: self._conn",
        "One: self._thread",
        "One: super()._execute",
    ]
