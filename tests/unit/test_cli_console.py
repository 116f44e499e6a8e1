"""Checks what a terminal shows of messages for people, and of tables."""

from __future__ import annotations

import io
import re
import sys

import pytest

from guanaco_cli.console import console

LONG_ID = "org-a-model-with-a-name-that-is-longer-than-the-terminal-is-wide_v12"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [20, 40, 80])
def test_an_error_breaks_between_words_and_ids_stay_whole(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    console.error(f"The submission {LONG_ID} cannot be redeployed while it is being checked.")
    lines = terminal.getvalue().splitlines()
    assert all(len(line) <= width or line.strip() == LONG_ID for line in lines)
    assert any(LONG_ID in line for line in lines)
    assert "redeployed" in " ".join(lines).split()


def test_what_is_no_terminal_gets_whole_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    console.error("A sentence that is longer than twenty columns.")
    assert capsys.readouterr().err == "error: A sentence that is longer than twenty columns.\n"


def table_at(width: int, monkeypatch: pytest.MonkeyPatch, file: io.StringIO) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", file)
    columns = ("id", "status", "name", "repo", "size>", "note")
    row = (LONG_ID, "deployed", "A long name of a model", "an-organisation/a-repo", "8 B", "Words")
    console.table(columns, [row])
    shown = re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())
    return [line.rstrip() for line in shown.splitlines()]


@pytest.mark.parametrize("width", [72, 80, 100, 160])
def test_a_table_never_cuts_an_id(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table_at(width, monkeypatch, Terminal())
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    assert any(LONG_ID in line for line in lines[3:])


def test_rows_are_blocks_where_an_id_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table_at(60, monkeypatch, Terminal())
    assert lines[0] == f"id: {LONG_ID}"
    assert lines[1:] == [
        "status: deployed",
        "name: A long name of a model",
        "repo: an-organisation/a-repo",
        "size: 8 B",
        "note: Words",
    ]


def test_a_narrow_table_names_the_columns_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = "\n".join(table_at(100, monkeypatch, Terminal()))
    assert "deployed" in shown
    assert "Not shown at this width:" in shown
    assert "note" in shown.partition("Not shown")[2]
    assert "Words" not in shown


def test_a_piped_table_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\n".join(table_at(20, monkeypatch, io.StringIO()))
    for cell in (LONG_ID, "A long name of a model", "an-organisation/a-repo", "Words"):
        assert cell in shown
