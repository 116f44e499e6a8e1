"""`guanaco --help` lists every command in its section, each on one line of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from typer.core import TyperGroup

from guanaco_cli.main import command, run
from guanaco_cli.sections import OTHER, SECTIONS

Help = Callable[..., str]


@pytest.fixture
def shown_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
    """Shows a command's help as a terminal of 80 columns does."""
    monkeypatch.setenv("COLUMNS", "80")

    def show(*path: str) -> str:
        assert run([*path, "--help"]) == 0
        return capsys.readouterr().out

    return show


def groups() -> Iterator[tuple[str, TyperGroup]]:
    root = command()
    assert isinstance(root, TyperGroup)
    waiting = [("guanaco", root)]
    while waiting:
        name, group = waiting.pop()
        yield name, group
        waiting += [
            (f"{name} {child}", command)
            for child, command in group.commands.items()
            if isinstance(command, TyperGroup) and not command.hidden
        ]


def test_every_command_is_in_one_section() -> None:
    _, root = next(groups())
    listed = Counter(name for names in SECTIONS.values() for name in names)
    assert {name for name, one in root.commands.items() if not one.hidden} == set(listed)
    assert set(listed.values()) == {1}


def test_sections_are_shown_in_order(shown_help: Help) -> None:
    shown = shown_help()
    places = [shown.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)
    assert OTHER not in shown


@pytest.mark.parametrize(("name", "group"), [pytest.param(*one, id=one[0]) for one in groups()])
def test_each_command_is_one_whole_line_at_80_columns(
    name: str, group: TyperGroup, shown_help: Help
) -> None:
    shown = shown_help(*name.split()[1:])
    shown_commands = {child: one for child, one in group.commands.items() if not one.hidden}
    for child, one in shown_commands.items():
        width = max(map(len, shown_commands))
        assert f"  {child.ljust(width)}  {one.get_short_help_str(200)}\n" in shown


@pytest.mark.parametrize(
    "path", [["feedback"], ["submit"], ["up"], ["prompts", "label"], ["sweep", "submit"]]
)
def test_help_names_no_type_of_python(path: list[str], shown_help: Help) -> None:
    shown = shown_help(*path)
    for word in ("<str>", "<int", "<float", "<path>", "<file>", "%Y"):
        assert word not in shown


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        (["submit"], "guanaco submit [OPTIONS] REPO"),
        (["conversations", "rate"], "guanaco conversations rate [OPTIONS] ID up|down"),
    ],
)
def test_usage_has_no_braces(path: list[str], usage: str, shown_help: Help) -> None:
    shown = shown_help(*path)
    assert f"Usage: {usage}\n" in shown


def test_no_help_is_wider_than_80_columns(shown_help: Help) -> None:
    too_wide = []
    for name, group in groups():
        for path in (name, *(f"{name} {child}" for child in group.commands)):
            shown = shown_help(*path.split()[1:])
            too_wide += [line for line in shown.splitlines() if len(line) > 80]
    assert too_wide == []
