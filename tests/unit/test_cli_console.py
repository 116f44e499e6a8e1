"""Checks what a terminal shows of messages for people."""

from __future__ import annotations

import io
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
