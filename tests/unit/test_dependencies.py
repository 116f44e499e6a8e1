"""Dependencies are used at their public surface: a private name may change with any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("guanaco", "cli", "server", "migrations")
OURS = ("guanaco", "guanaco_cli", "guanaco_server", "tests")
# Each has a test of its own against the version that it was made for.
ISOLATED = (
    "server/guanaco_server/database/sqlite_connection.py",
    "server/guanaco_server/engine/vllm_internals.py",
    "server/guanaco_server/lore/patterns.py",  # the parse tree of regular expressions: test_lore.py
)


def is_private(name: str) -> bool:
    """Python's own protocols (``__name__``, and enum's ``_value_``) and ``os._exit`` are public."""
    return name.startswith("_") and not name.endswith("_") and name != "_exit"


def private_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
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


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Names that our own code gives to something: what it may use of other objects too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def private_attributes(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
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
        for use in (*private_imports(tree), *private_attributes(tree, ours))
    }
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
