"""`guanaco conversations`, `alias`, `tag`, `card`, and the names that the shell completes."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.errors import NothingToContinue
from guanaco_cli import completion
from guanaco_cli.main import run
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import AT, refused, reply_json, sse, submission_json

__all__ = ["profile", "server"]

OPENED = {"conversation_id": "conv_1", "submission_id": "org-model_v1"}
ALIAS = {
    "alias": "org/model@champion",
    "submission_id": "org-model_v1",
    "developer": "a",
    "set_at": AT,
}


def message(number: int, **changes: Any) -> dict[str, Any]:
    sender = "user" if number % 2 else "bot"
    return {
        "id": f"msg_{number}",
        "sender": sender,
        "content": f"text {number}",
        "at": AT,
    } | changes


CONVERSATION = {
    **OPENED, "bot": {"name": "Nia"}, "user_name": "Sam", "created_at": AT, "is_chosen": True,
    "messages": [message(1), message(2, is_deleted=True), message(4, edited_at=AT, thumbs_up=True)],
}  # fmt: skip


def test_opening_needs_consent_and_sends_what_is_given(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(201, json=OPENED))
    options = ["--user", "u1", "--consent", "--bot", "ada", "--model", "org/model@champion"]
    notes = ["--note", "shelf=2", "--external-id", "chat-7"]
    assert run(["conversations", "open", *options, *notes]) == 0
    sent = json.loads(script.requests[0].content)
    assert (sent["user_id"], sent["consent"], sent["model"]) == ("u1", True, "org/model@champion")
    assert (sent["bot"]["name"], sent["metadata"], sent["external_id"]) == (
        "Ada",
        {"shelf": "2"},
        "chat-7",
    )
    assert capsys.readouterr().out == "conv_1\n"
    assert run(["conversations", "open", "--user", "u1", "--note", "nothing"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err


def test_conversations_open_in_the_named_competition(server: Any, tmp_path: Path) -> None:
    script = server(*[httpx.Response(201, json=OPENED)] * 3)
    file = tmp_path / "said.json"
    file.write_text("[]")
    who = ["--user", "u1", "--consent"]
    assert run(["conversations", "open", *who, "--competition", "autumn"]) == 0
    assert run(["conversations", "import", str(file), *who, "--competition", "autumn"]) == 0
    assert run(["conversations", "open", *who]) == 0
    sent = [json.loads(request.content)["competition"] for request in script.requests]
    assert sent == ["autumn", "autumn", "open"]


def test_what_show_prints_as_json_can_be_imported(server: Any, capsys: Any, tmp_path: Path) -> None:
    script = server(httpx.Response(200, json=CONVERSATION), httpx.Response(201, json=OPENED))
    assert run(["conversations", "show", "conv_1", "--json"]) == 0
    file = tmp_path / "said.json"
    file.write_text(capsys.readouterr().out)
    assert run(["conversations", "import", str(file), "--user", "u1", "--consent"]) == 0
    assert json.loads(script.requests[1].content)["history"] == [
        {"sender": "user", "content": "text 1"},
        {"sender": "bot", "content": "text 4"},
    ]
    for wrong in ("[1]", "{", "- sender: narrator\n  content: x\n"):
        file.write_text(wrong)
        assert run(["conversations", "import", str(file), "--user", "u1", "--consent"]) == 2
        assert str(file) in capsys.readouterr().err


def test_a_conversation_is_shown_with_ids_and_marks(server: Any, capsys: Any) -> None:
    hostile = CONVERSATION | {"messages": [message(1, content=HOSTILE)]}
    server(httpx.Response(200, json=CONVERSATION), httpx.Response(200, json=hostile))
    assert run(["conversations", "show", "conv_1"]) == 0
    shown = capsys.readouterr().out
    assert "msg_4 (edited, thumbs up)\nNia: text 4" in shown
    assert "msg_2" not in shown
    assert "chosen" in shown
    assert run(["conversations", "show", "conv_1"]) == 0
    assert is_safe(capsys.readouterr().out)


def test_reply_is_printed_live_and_its_end_explained(server: Any, capsys: Any) -> None:
    def stream(**changes: Any) -> httpx.Response:
        body = sse("token", {"text": " and on"}) + sse("done", reply_json(**changes))
        return httpx.Response(200, content=body)

    script = server(stream(finish_reason="length"), stream(appended=" and on"))
    assert run(["conversations", "say", "conv_1", "Go on"]) == 0
    shown = capsys.readouterr()
    assert shown.out == " and on\n"
    assert "conversations continue" in shown.err
    assert run(["conversations", "continue", "conv_1"]) == 0
    assert capsys.readouterr().out == " and on\n"
    assert script.requests[1].url.path == "/api/v1/conversations/conv_1/continue"


def test_only_a_missing_text_or_a_dash_reads_stdin(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [httpx.Response(200, json=reply_json()) for _ in range(2)]
    script = server(*replies)
    for given in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\nHello\n  \n"))
        assert run(["conversations", "say", "conv_1", *given, "--json"]) == 0
    assert [json.loads(one.content)["content"] for one in script.requests] == ["Hello"] * 2
    for blank in ("", " "):
        assert run(["conversations", "say", "conv_1", blank]) == 2
        assert "TEXT is blank" in capsys.readouterr().err
        assert run(["conversations", "edit", "conv_1", "msg_2", blank]) == 2
        assert run(["chat", "org-model_v1", "--message", blank]) == 2
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("arguments", "method", "path"),
    [
        (["rate", "conv_1", "up"], "POST", "feedback"),
        (["rate", "conv_1", "down", "--change", "--text", "No."], "PUT", "feedback"),
        (["rate", "conv_1", "up", "--message", "msg_2"], "PUT", "messages/msg_2/rating"),
        (["withdraw", "conv_1"], "DELETE", "feedback"),
        (["withdraw", "conv_1", "--message", "msg_2"], "DELETE", "messages/msg_2/rating"),
        (["delete", "conv_1", "--yes"], "DELETE", ""),
        (["delete", "conv_1", "--message", "msg_2", "--yes"], "DELETE", "messages/msg_2"),
        (["memory", "conv_1", "--erase", "--yes"], "DELETE", "memory"),
        (["choose", "conv_1", "msg_2"], "POST", "choice"),
        (["edit", "conv_1", "msg_2", "Better."], "PATCH", "messages/msg_2"),
    ],
)
def test_each_command_is_one_call(
    server: Any, arguments: list[str], method: str, path: str
) -> None:
    rating = {
        "feedback_id": "fb_1",
        "thumbs_up": True,
        "text": "",
        "at": AT,
        "changeable_until": AT,
    }
    script = server(httpx.Response(200, json=message(2) | rating))
    assert run(["conversations", *arguments]) == 0
    asked = script.requests[0]
    assert (asked.method, asked.url.path) == (
        method,
        f"/api/v1/conversations/conv_1/{path}".rstrip("/"),
    )


def test_wrong_use_is_a_sentence(server: Any, capsys: Any) -> None:
    server(refused(NothingToContinue(), 409))
    assert run(["conversations", "continue", "conv_1"]) == 1
    assert "nothing to continue" in capsys.readouterr().err
    assert run(["conversations", "delete", "conv_1"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["conversations", "delete", "conv_1", "--with-following", "--yes"]) == 2
    assert run(["conversations", "rate", "conv_1", "up", "--message", "m", "--change"]) == 2
    assert run(["conversations", "rate", "conv_1", "sideways"]) == 2


def test_aliases_and_tags_are_set_and_shown(server: Any, capsys: Any) -> None:
    tagged = submission_json(tags=["night", "old"], aliases=["org/model@champion"])
    script = server(
        httpx.Response(200, json=ALIAS),
        httpx.Response(204),
        httpx.Response(200, json=tagged),
        httpx.Response(200, json=tagged | {"tags": ["night", "lora"]}),
        httpx.Response(200, json=[tagged]),
    )
    assert run(["alias", "set", "org-model_v1", "@champion"]) == 0
    assert capsys.readouterr().out == "org/model@champion\n"
    assert run(["alias", "remove", "org/model@champion"]) == 0
    assert script.requests[1].url.raw_path.endswith(b"org%2Fmodel%40champion/aliases/champion")
    assert run(["tag", "org-model_v1", "lora", "--remove", "old"]) == 0
    assert json.loads(script.requests[3].content) == {"tags": ["night", "lora"]}
    assert run(["submissions", "--tag", "night", "--tag", "old"]) == 0
    assert script.requests[4].url.query == b"tag=night&tag=old"
    assert "@champion" in capsys.readouterr().out


def test_a_model_card_is_printed_safely(server: Any, capsys: Any) -> None:
    card = {"text": f"# Hi\n{HOSTILE}", "license": "mit", "base_models": ["org/base"]}
    server(httpx.Response(200, json=card))
    assert run(["card", "org-model_v1"]) == 0
    shown = capsys.readouterr().out
    assert "org/base" in shown
    assert is_safe(shown)


def test_names_complete_once_a_moment_and_never_fail(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = submission_json(aliases=["org/model@champion"])
    script = server(httpx.Response(200, json=[one]), httpx.Response(503), httpx.Response(503))
    assert completion.complete_submissions("org") == ["org/model@champion", "org-model_v1"]
    assert completion.complete_aliases("org/") == ["org/model@champion"]
    assert len(script.requests) == 1, "it is kept"
    later = time.time() + completion.KEPT_S + 1
    monkeypatch.setattr(completion.time, "time", lambda: later)
    assert completion.complete_submissions("org") == []
    assert completion.complete_submissions("org") == []
    assert len(script.requests) == 2, "a server that fails is left alone for a moment"
    monkeypatch.setenv("GUANACO_PROFILE", str(tmp_path))
    assert completion.complete_submissions("") == []


@pytest.mark.parametrize(
    ("words", "asked", "expected", "completed"),
    [
        (["guanaco", "status", "org/m"], 2, ["guanaco", "status", "org/m"], ["org/model@champion"]),
        (["guanaco", "status", "org/model", "@", "ch"], 4, ["guanaco", "status", "@ch"], ["@champion"]),
        (["guanaco", "status", "org/model", "@"], 3, ["guanaco", "status", "@"], ["@champion"]),
        (["guanaco", "status", "or/x", "@", "ch"], 4, ["guanaco", "status", "@ch"], []),
        (
            ["guanaco", "tag", "org/model", "@", "champion", "ni"],
            5,
            ["guanaco", "tag", "org/model@champion", "ni"],
            [],
        ),
    ],
)  # fmt: skip
def test_an_alias_that_bash_has_split_is_completed(
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    asked: int,
    expected: list[str],
    completed: list[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server(httpx.Response(200, json=[submission_json(aliases=["org/model@champion"])]))
    environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(asked)}
    for name, value in {**environment, "_GUANACO_COMPLETE": "complete_bash"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(completion.BEFORE_AT, "")  # put back at the end
    completion.mend_bash_words(os.environ)
    assert os.environ["COMP_WORDS"].split("\n") == expected
    assert int(os.environ["COMP_CWORD"]) == len(expected) - 1
    assert completion.complete_submissions(expected[-1]) == completed
    monkeypatch.delenv(completion.BEFORE_AT, raising=False)


MEMORY = {
    "conversation_id": "conv_1",
    "summaries": [{"message": 9, "until": 6, "text": "Kim has a ferret.", "written_by": "rule"}],
    "recalled": [{"message": 11, "recalled": [1, 3]}],
    "carried": {"conversation_id": "conv_0", "text": "Kim lives in Oslo."},
}


def test_memory_is_shown_and_corrected(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=MEMORY))
    assert run(["conversations", "memory", "conv_1"]) == 0
    shown = capsys.readouterr().out
    assert "Kim has a ferret." in shown
    assert "Kim lives in Oslo." in shown
    assert "1, 3" in shown
    script = server(httpx.Response(200, json=MEMORY))
    assert run(["conversations", "memory", "conv_1", "--correct", "Kim has a stoat."]) == 0
    assert (script.requests[0].method, json.loads(script.requests[0].content)) == ("PUT", {"summary": "Kim has a stoat."})  # fmt: skip


def test_memory_is_corrected_or_erased_but_not_both(server: Any, capsys: Any) -> None:
    assert run(["conversations", "memory", "conv_1", "--correct", "x", "--erase"]) == 2
    assert "exclude each other" in capsys.readouterr().err
