"""Writes docs/cli.md from the commands of `guanaco`; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from guanaco_cli.main import app
from guanaco_cli.sections import OTHER, SECTIONS

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """\
# The command line

Every command of `guanaco`, by who needs it. `guanaco COMMAND --help` says the same in the terminal, and
`guanaco --install-completion` makes the shell complete commands and ids. Most commands take `--json`, for programs.

The exit status is 0 when all went well, 1 when the platform or the model did not, and 2 when the command line was wrong.

This page is written by `make docs` from `cli/guanaco_cli/`.
"""
MARKUP = re.compile(r"\[/?(?:bold|dim|cyan|green|red|italic)[^\]]*\]")


def page() -> str:
    group: Any = typer.main.get_command(app)
    context = group.make_context("guanaco", [], resilient_parsing=True)
    there = {name: group.get_command(context, name) for name in group.list_commands(context)}
    shown = {name: command for name, command in there.items() if not command.hidden}
    listed = {name for names in SECTIONS.values() for name in names}
    others = tuple(name for name in shown if name not in listed)
    text = HEAD
    for title, names in {**SECTIONS, OTHER: others}.items():
        commands = [
            part
            for name in names
            if name in shown
            for part in _described(shown[name], f"guanaco {name}", context)
        ]
        if commands:
            text += f"\n## {title}\n" + "".join(commands)
    return text


def _described(command: Any, path: str, above: Any) -> Iterator[str]:
    """Yield a command's section, or those of a group's commands."""
    context = type(above)(command, info_name=path, parent=None)
    if hasattr(command, "list_commands"):
        if command.invoke_without_command:
            yield _section(command, path, context)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if not below.hidden:
                yield from _described(below, f"{path} {name}", context)
        return
    yield _section(command, path, context)


def _section(command: Any, path: str, context: Any) -> str:
    parameters = [
        each for each in command.get_params(context) if not getattr(each, "hidden", False)
    ]
    rows = "".join(_row(each) for each in parameters)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    example = f"\n{_plain(command.epilog)}\n" if command.epilog else ""
    table = f"\n| parameter | what it is |\n| --- | --- |\n{rows}" if rows else ""
    return f"\n### {path}\n{_plain(command.help or '')}\n\n```\n{usage}\n```\n{table}{example}"


def _row(parameter: Any) -> str:
    value = parameter.metavar or parameter.name.upper()
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{value}`"
    elif not parameter.is_flag:
        names += f" `{value}`"
    text = _plain(getattr(parameter, "help", None) or "")
    return f"| {_cell(names)} | {_cell(text)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _plain(text: str) -> str:
    """Return a help text as Markdown: paragraphs stay, lines within one are joined, brackets are no links."""
    paragraphs = re.split(r"\n\s*\n", MARKUP.sub("", text).strip())
    return "\n\n".join(" ".join(part.split()) for part in paragraphs).replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
