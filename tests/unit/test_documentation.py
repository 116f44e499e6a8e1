"""The pages for people say what is true: their commands exist, their files are accepted, their code passes the type checker."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mypy.api
import pytest
import yaml

import guanaco
from guanaco import AsyncClient, Client
from guanaco.competitions import CompetitionRequest
from guanaco.errors import error_classes
from guanaco.errors.remedies import REMEDIES
from guanaco.submissions import EventKind
from guanaco.sweeps import load_sweep
from guanaco.webhooks import WebhookEvent
from guanaco_cli import main
from guanaco_cli.sweeps import SweepGroup
from scripts import document_cli, document_errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        path
        for path in DOCS.rglob("*.md")
        if path.parent.name != "decisions" and path.name != "cli.md"
    ),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "toml": tomllib.loads,
}
QUOTED = re.compile(r"`(guanaco(?: [^`]+)?)`")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours, one a line."""
    for line in text.splitlines():
        for part in line.partition("#")[0].split("&&"):
            if part.strip().startswith("guanaco "):
                yield shlex.split(part)[1:]


def problem(words: list[str]) -> str | None:
    """Return what is wrong with a command line: a command or an option that does not exist."""
    command: Any = main.command()
    context = command.make_context("guanaco", [], resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None and isinstance(command, SweepGroup):
            found, rest = command.get_command(context, "run"), ["run", *rest]
        if found is None:
            return f"there is no {' '.join(words)}"
        command, rest = found, rest[1:]
    parameters = command.get_params(context)  # some are made when they are asked for
    known = {name for each in parameters for name in [*each.opts, *each.secondary_opts]}
    unknown = [
        word for word in rest if word.startswith("-") and word.partition("=")[0] not in known
    ]
    return f"{' '.join(words)}: there is no {unknown[0]}" if unknown else None


def test_the_page_of_commands_is_what_make_docs_writes() -> None:
    assert document_cli.PAGE.read_text() == document_cli.page(), "`make docs` puts this right"


def test_every_error_has_a_cause_and_a_cure() -> None:
    assert sorted(REMEDIES) == sorted(error_classes())
    assert document_errors.PAGE.read_text() == document_errors.page(), "`make docs` puts this right"


def test_every_event_is_in_the_reference_of_events() -> None:
    text = (DOCS / "events.md").read_text()
    names = [*EventKind, *WebhookEvent]
    assert [name for name in names if f"| `{name.value}` |" not in text] == []


@pytest.mark.slow
def test_the_commands_of_cures_exist() -> None:
    quoted = [each for remedy in REMEDIES.values() for each in QUOTED.findall(" ".join(remedy))]
    assert len(quoted) > 30
    wrong = [problem(words) for text in quoted for words in commands(text.replace("…", ""))]
    assert not [each for each in wrong if each]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist(page: Path) -> None:
    shown = [*blocks(page, ""), *QUOTED.findall(page.read_text())]
    wrong = [problem(words) for text in shown for words in commands(text)]
    assert not [each for each in wrong if each]


def test_a_wrong_command_is_found() -> None:
    assert problem(["submit", "org/model", "--wait"]) is None
    assert problem(["submit", "org/model", "--wat"]) == "submit org/model --wat: there is no --wat"
    assert problem(["submitt", "org/model"]) == "there is no submitt org/model"


def test_the_files_of_the_tutorials_are_accepted(tmp_path: Path) -> None:
    (competition,) = blocks(DOCS / "tutorials" / "competition.md", "yaml")
    assert CompetitionRequest.model_validate(yaml.safe_load(competition)).name == "Autumn"
    for block in blocks(DOCS / "tutorials" / "improve.md", "yaml"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    assert len(load_sweep(tmp_path / "sweep.yaml").variants) == 4


@pytest.mark.slow
def test_the_code_of_the_pages_passes_the_type_checker(tmp_path: Path) -> None:
    code = [text for page in PAGES for text in blocks(page, "python") if "chai_guanaco" not in text]
    assert len(code) >= 3
    for number, text in enumerate(code):
        (tmp_path / f"block{number}.py").write_text(text)
    said, _, status = mypy.api.run(
        [
            f"--cache-dir={ROOT / '.mypy_cache' / 'pages'}",  # what the pages import is read once
            f"--config-file={ROOT / 'pyproject.toml'}",
            *map(str, tmp_path.glob("*.py")),
        ]
    )
    assert status == 0, said


def test_the_data_of_the_pages_parses() -> None:
    wrong = []
    for page in PAGES:
        for language, parse in PARSERS.items():
            for text in blocks(page, language):
                try:
                    parse(text)
                except (ValueError, yaml.YAMLError) as error:
                    wrong.append(f"{page.name}: {text[:60]}: {error}")
    assert wrong == []


def test_the_sdk_page_has_every_public_method() -> None:
    shown = re.findall(r"^::: ([\w.]+)", (DOCS / "sdk.md").read_text(), re.MULTILINE)
    names = {name for path in shown for name in _public_names(path)}
    methods = {
        name for kind in (Client, AsyncClient) for name in dir(kind) if not name.startswith("_")
    }
    assert sorted(methods - names) == []
    lacking = [
        f"{kind.__name__}.{name}"
        for kind in (Client, AsyncClient)
        for name in sorted(methods - {"close"})
        if callable(method := getattr(kind, name, None)) and not _is_whole(method)
    ]
    assert lacking == [], "a docstring with Args, Returns or Yields, and Raises"


def test_every_public_function_of_the_sdk_says_what_it_raises() -> None:
    of_modules = [
        (path, name, function)
        for path in re.findall(r"^::: ([\w.]+)", (DOCS / "sdk.md").read_text(), re.MULTILINE)
        if path.startswith("guanaco.calls.")
        for name, function in inspect.getmembers(importlib.import_module(path), inspect.isfunction)
        if function.__module__ == path
    ]
    of_package = [
        ("guanaco", name, function)
        for name in guanaco.__all__
        if inspect.isfunction(function := getattr(guanaco, name))
    ]
    of_clients = [
        (kind.__name__, name, function)
        for kind in (Client, AsyncClient)
        for name, function in inspect.getmembers(kind, callable)
    ]
    lacking = [
        f"{place}.{name}"
        for place, name, function in (*of_modules, *of_package, *of_clients)
        if not name.startswith("_") and name != "close"
        if "Raises:\n" not in (inspect.getdoc(function) or "")
    ]
    assert len(of_modules) > 80
    assert lacking == []


def _public_names(path: str) -> set[str]:
    """Return what mkdocstrings shows of a module or a class."""
    try:
        return set(dir(importlib.import_module(path)))
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return {name, *dir(getattr(importlib.import_module(module), name))}


def _is_whole(method: Callable[..., object]) -> bool:
    said = inspect.getdoc(method) or ""
    takes = list(inspect.signature(method).parameters)[1:]
    gives = inspect.signature(method).return_annotation
    has_result = "None" in str(gives) or "Returns:" in said or "Yields:" in said
    return has_result and (not takes or "Args:" in said)
