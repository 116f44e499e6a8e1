"""`guanaco prompts test`: budgets, surviving texts, golden texts and wrong files. The server is scripted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from guanaco.errors import MessageTooLong
from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import refused

__all__ = ["profile", "server"]

PROMPT = "A pirate.\nYou: Hi\nLuna:"


@pytest.fixture
def cases(tmp_path: Path) -> Any:
    def write(*expectations: dict[str, Any], **changed: Any) -> str:
        bot, turns = {"name": "Luna"}, [{"sender": "user", "content": "Hi"}]
        file = tmp_path / "cases.yaml"
        made = [
            {"name": f"case {n}", "bot": bot, "turns": turns, "expect": expect, **changed}
            for n, expect in enumerate(expectations)
        ]
        file.write_text(yaml.safe_dump({"cases": made}))
        return str(file)

    return write


def answer() -> httpx.Response:
    body = {"prompt": PROMPT, "tokens": 9, "max_input_tokens": 64}
    return httpx.Response(200, json=body)


def test_cases_that_hold_end_with_0(server: Any, cases: Any, capsys: Any) -> None:
    server(answer(), answer())
    file = cases({"max_tokens": 9, "contains": ["A pirate."]}, {"golden": PROMPT, "lacks": ["<"]})
    assert run(["prompt", "test", file, "chatml"]) == 0
    out, err = capsys.readouterr()
    assert out == "passed case 0 (9 tokens)\npassed case 1 (9 tokens)\n"
    assert "2 passed, 0 failed." in err


def test_each_broken_expectation_is_told(server: Any, cases: Any, capsys: Any) -> None:
    server(answer())
    file = cases({"max_tokens": 8, "contains": ["ship"], "lacks": ["Hi"], "golden": PROMPT + "\n"})
    assert run(["prompt", "test", file, "chatml", "--json"]) == 1
    [result] = json.loads(capsys.readouterr().out)
    over, lacks, contains, golden = result["problems"]
    assert (over, lacks, contains) == (
        "It has 9 tokens, over 8.",
        "It lacks 'ship'.",
        "It contains 'Hi'.",
    )
    assert golden.endswith("-Luna:\n+Luna: (no line break at the end)")


def test_a_case_that_no_cut_fits_fails_alone(server: Any, cases: Any, capsys: Any) -> None:
    server(refused(MessageTooLong("The message is too long."), 422), answer())
    assert run(["prompt", "test", cases({"max_tokens": 9}, {"max_tokens": 9}), "chatml"]) == 1
    out = capsys.readouterr().out
    assert "FAILED case 0\n" in out
    assert "passed case 1" in out


def test_a_wrong_file_is_one_sentence(server: Any, cases: Any, capsys: Any) -> None:
    server()
    for file in (cases({}), cases({"golden": ""}, {"golden": ""}, name="twice"), cases(), "none"):
        assert run(["prompt", "test", file, "chatml"]) == 2
        assert capsys.readouterr().err.count("error: ") == 1
    assert run(["prompt", "test", cases({"goldn": ""}), "chatml"]) == 2
    assert capsys.readouterr().err.endswith(
        "cases.0.expect.goldn: There is no such field; perhaps you mean golden.\n"
    )
    assert run(["prompt", "test", cases({"golden": ""})]) == 2
