"""`guanaco prompts`: what it sends, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.stored_prompts import PromptReference, read_reference
from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT

__all__ = ["profile", "server"]

LABEL = {
    "label": "production",
    "version": 2,
    "previous": 1,
    "moved_at": AT,
    "moved_by": "ada",
    "submissions": ["x_v1"],
}
STORED = {
    "name": "support",
    "developer": "ada",
    "newest": 2,
    "created_at": AT,
    "updated_at": AT,
    "labels": [LABEL],
    "versions": [
        {"version": 2, "note": "shorter", "created_at": AT, "created_by": "ada"},
        {"version": 1, "created_at": AT, "created_by": "ada"},
    ],
}


def version(number: int, text: str) -> httpx.Response:
    parts = [
        {"name": "persona", "content": f"{text}\nSecond line.\n"},
        {"name": "chat", "each": "turn", "content": "{{ name }}: {{ message }}"},
    ]
    found = {"name": "support", "developer": "ada", "version": number, "created_at": AT}
    prompt = {"kind": "file", "parts": parts}
    return httpx.Response(200, json=found | {"created_by": "ada", "prompt": prompt})


def test_pushed_file_is_shown_as_it_can_be_pushed_again(
    server: Any, capsys: Any, tmp_path: Path
) -> None:
    script = server(version(3, "First."))
    assert run(["prompts", "push", "support", "chatml", "--note", "shorter"]) == 0
    sent = json.loads(script.requests[0].content)
    assert (sent["name"], sent["note"], sent["prompt"]["kind"]) == ("support", "shorter", "templates")  # fmt: skip
    assert capsys.readouterr().out == "support@3\n"

    server(version(3, "First."))
    assert run(["prompts", "show", "support@3"]) == 0
    file = tmp_path / "again.yaml"
    file.write_text(capsys.readouterr().out)
    script = server(version(3, "First."))
    assert run(["prompts", "push", "support", str(file)]) == 0
    assert json.loads(script.requests[0].content)["prompt"]["parts"][0]["content"] == "First.\nSecond line.\n"  # fmt: skip


def test_lists_show_labels_and_who_follows(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=[STORED]))
    assert run(["prompts", "list"]) == 0
    assert "production: 2" in capsys.readouterr().out
    server(httpx.Response(200, json=STORED))
    assert run(["prompts", "show", "support"]) == 0
    said = capsys.readouterr()
    assert "shorter" in said.out
    assert "support@production is followed by x_v1." in said.err


def test_a_difference_is_printed_like_diff(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=STORED), version(1, "Old."), version(2, "New."))
    assert run(["prompts", "diff", "support", "production"]) == 0
    assert script.requests[1].url.path.endswith("/prompts/support/versions/production")
    out = capsys.readouterr().out
    assert "-    Old." in out
    assert "+    New." in out
    server(version(1, "Old."), version(1, "Old."))
    assert run(["prompts", "diff", "support", "1", "1"]) == 0
    assert "are the same" in capsys.readouterr().err


def test_a_label_is_moved_back_and_removed(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=LABEL))
    assert run(["prompts", "label", "support", "production", "2"]) == 0
    assert json.loads(script.requests[0].content) == {"version": 2}
    said = capsys.readouterr().err
    assert "support@production is version 2 now, before 1." in said
    assert "x_v1" in said
    script = server(httpx.Response(200, json=LABEL))
    assert run(["prompts", "label", "support", "production", "--back"]) == 0
    assert json.loads(script.requests[0].content) in ({}, {"version": None})
    script = server(httpx.Response(204))
    assert run(["prompts", "label", "support", "production", "--remove"]) == 0
    assert script.requests[0].method == "DELETE"


@pytest.mark.parametrize("wrong", [[], ["2", "--back"], ["--back", "--remove"], ["0"]])
def test_one_move_at_a_time(capsys: Any, wrong: list[str]) -> None:
    assert run(["prompts", "label", "support", "production", *wrong]) != 0


def test_a_submission_names_a_stored_prompt_as_its_formatter(server: Any) -> None:
    script = server(httpx.Response(500))
    run(["submit", "org/model", "--formatter", "support@production", "--no-wait"])
    sent = json.loads(script.requests[0].content)
    assert (sent["prompt"], sent["formatter"]["kind"]) == ("support@production", "templates")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a@3", PromptReference("a", 3, None)),
        ("a@production", PromptReference("a", None, "production")),
        ("a", None),
        ("a@", None),
        ("A@1", None),
        ("a@1.yaml", None),
        ("a@12345678901", None),
    ],
)
def test_references_are_read(text: str, found: PromptReference | None) -> None:
    assert read_reference(text) == found
    assert found is None or str(found) == text


def test_stored_prompts_are_rendered_and_tested(server: Any, capsys: Any, tmp_path: Path) -> None:
    rendered = httpx.Response(200, json={"prompt": "x", "tokens": 1, "max_input_tokens": 16})
    cases = tmp_path / "cases.yaml"
    cases.write_text("cases: [{name: a, bot: {name: Luna}, expect: {contains: [x]}}]")
    for command in (
        ["prompts", "render", "support@production", "--json"],
        ["prompts", "test", str(cases), "support@production"],
    ):
        script = server(version(3, "First."), rendered)
        assert run(command) == 0
        assert script.requests[0].url.path.endswith("/prompts/support/versions/production")
        sent = json.loads(script.requests[1].content)
        assert sent["formatter"]["parts"][0]["content"].startswith("First.")
    server(version(3, "First."))
    capsys.readouterr()
    assert (
        run(["prompts", "render", "support@3", "--bot", "ada"]) == 0
    )  # by the platform's own code
    assert capsys.readouterr().out.startswith("First.\nSecond line.\n")


def test_author_of_a_wrong_template_is_told_what_to_correct(capsys: Any, tmp_path: Path) -> None:
    template = tmp_path / "my.j2"
    for text, status, says in (
        ("", 2, f"error: {template} is empty.\nhint: docs/prompts.md shows templates in"),
        ("{% for", 1, "hint: Correct the prompt: docs/prompts.md says what it may hold."),
        ("{{ 1 / 0 }}", 1, "hint: Correct the prompt"),
    ):
        template.write_text(text)
        assert run(["prompts", "render", str(template)]) == status
        shown = capsys.readouterr().err
        assert says in shown
        assert "developer" not in shown
