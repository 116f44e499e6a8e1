from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guanaco.parameters import parameters
from guanaco_cli.console import Console
from guanaco_cli.failures import report
from guanaco_cli.main import app, run

ROOT = Path(__file__).parents[2]
HEAVY = {
    "httpx",
    "pydantic",
    "rich",
    "yaml",
    "asyncio",
    "guanaco_server",
    "fastapi",
    "sqlalchemy",
    "torch",
}
COMMANDS = [
    "login",
    "whoami",
    "logout",
    "evaluate",
    "submit",
    "check",
    "delete",
    "submissions",
    "status",
    "logs",
    "stress",
    "chat",
    "feedback",
    "leaderboard",
    "cancel",
    "deactivate",
    "reactivate",
    "redeploy",
    "rollback",
    "teardown",
    "recipe",
    "costs",
    "alerts",
    "slo",
    "plan",
    "up",
    "migrate",
    "settings",
    "demo",
    "doctor",
    "keys",
]


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / name) for name in (".", "cli", "server")])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )


def loaded_by(*arguments: str) -> set[str]:
    code = f"import sys\nfrom guanaco_cli.main import run\nrun({list(arguments)})\nprint('LOADED', *sys.modules)"
    loaded = set(python(code).stdout.rpartition("LOADED")[2].split())
    assert "guanaco_cli.main" in loaded
    return loaded


def test_help_imports_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("--help")


@pytest.mark.parametrize("arguments", [("submit", "--help"), ("nonsense",)])
def test_help_and_misspelt_commands_import_no_more_than_typer(
    arguments: tuple[str, ...],
) -> None:
    assert not (HEAVY - {"pydantic"}) & loaded_by(*arguments)  # Typer reads arguments with pydantic


def test_help_lists_every_command(capsys: Any) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", shown, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: Any) -> None:
    sub = ["create"] if command == "keys" else []
    assert run([command, *sub, "--help"]) == 0
    assert "Example: guanaco" in " ".join(capsys.readouterr().out.split())


def test_submit_help_shows_each_parameters_range_and_default(capsys: Any) -> None:
    assert run(["submit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for one in parameters():
        text = re.search(rf" {one.option} .*?\[default: (.*?)\]", shown)
        assert text is not None, one.name
        default = r"\n" if one.is_list else str(one.field.default)
        assert text[1] == default, one.name
        for kind in ("ge", "gt", "le"):
            if not one.is_list and (value := one.bound(kind)) is not None:
                assert re.search(rf"(?<![\d.]){value}\b", text[0]), (one.name, kind)


def test_python_m_is_the_same_command() -> None:
    code = "import runpy, sys\nsys.argv = ['guanaco', '--help']\nrunpy.run_module('guanaco_cli', run_name='__main__')"
    shown = python(code)
    assert shown.returncode == 0
    assert shown.stdout.startswith("Usage: guanaco ")


def test_completion_can_be_installed() -> None:
    shown = python(
        "from guanaco_cli.main import main; main()",
        _GUANACO_COMPLETE="complete_bash",
        COMP_WORDS="guanaco sub",
        COMP_CWORD="1",
    )
    assert {"submit", "submissions"} <= set(shown.stdout.split())


def test_a_character_that_the_terminal_cannot_show_is_no_failure() -> None:
    code = "from guanaco_cli.console import console; console.prepare(); console.line('\\u2713 \\ud83e')"
    shown = python(code, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert shown.stdout.startswith("?")


def test_nothing_is_coloured_without_a_terminal(capsys: Any) -> None:
    Console().error("Bad.", "Do good.")
    assert capsys.readouterr().err == "error: Bad.\nhint: Do good.\n"


@pytest.mark.parametrize("module", ["main", "artifacts"])
@pytest.mark.parametrize(
    ("closing", "status", "says"),
    [
        (">&-", 1, "error: Standard output is closed"),
        (">&- 2>&- <&-", 1, ""),
        ("1</dev/null", 2, "No such command"),
        ("<&-", 2, "No such command"),
        ("2>&-", 2, ""),
    ],
)
def test_closed_streams_are_one_sentence(module: str, closing: str, status: int, says: str) -> None:
    code = f"from guanaco_cli.{module} import main; main()"
    path = os.pathsep.join([str(ROOT / name) for name in (".", "cli", "server")])
    shown = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{code}' nonsense {closing}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert shown.returncode == status, shown.stderr
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_output_that_cannot_be_written_is_one_sentence(capsys: Any) -> None:
    error = OSError(errno.EBADF, os.strerror(errno.EBADF))
    assert report(error, app) == 1
    assert capsys.readouterr().err == "error: Reading or writing failed: Bad file descriptor.\n"


def test_input_that_is_no_text_is_one_sentence(capsys: Any) -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        b"gk_\xff".decode()
    assert report(raised.value, app) == 2
    assert capsys.readouterr().err.startswith("error: The input is no text in UTF-8.\n")


def test_a_closed_pipe_is_no_traceback() -> None:
    code = "from guanaco_cli.main import main; main()"
    path = os.pathsep.join([str(ROOT / name) for name in (".", "cli", "server")])
    shown = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{code}' --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "Traceback" not in shown.stderr
