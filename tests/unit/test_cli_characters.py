"""`guanaco characters`, and conversations and talks with a stored character."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco_cli.main import run
from tests.fixtures.cards import V2, card_png
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import AT, reply_json, submission_json

__all__ = ["profile", "server"]

ID = "chr_" + "a" * 32
CHARACTER: dict[str, Any] = {
    "id": ID,
    "version": 2,
    "newest": 2,
    "owner": "app",
    "is_public": False,
    "spec": "v2",
    "name": "Marlowe",
    "description": HOSTILE,
    "greetings": ["Hi.", "Ho."],
    "lorebook_entries": 3,
    "size_bytes": 10,
    "created_at": AT,
}
ROW = {
    "id": ID,
    "version": 2,
    "name": HOSTILE,
    "owner": "app",
    "is_public": True,
    "greetings": 2,
    "created_at": AT,
    "updated_at": AT,
}


def test_push_sends_the_file_as_it_is(server: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "card.png"
    file.write_bytes(card_png(V2, "chara"))
    answers = [httpx.Response(201, json=CHARACTER) for _ in range(2)]
    script = server(*answers)
    assert run(["characters", "push", str(file), "--public"]) == 0
    assert run(["characters", "push", str(file), "--id", ID, "--json"]) == 0
    first, second = script.requests
    assert (first.content, first.headers["content-type"]) == (file.read_bytes(), "image/png")
    assert (first.url.path, first.url.query) == ("/api/v1/characters", b"public=true")
    assert second.url.path == f"/api/v1/characters/{ID}/versions"
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{ID}@2\n")
    assert "Of its 3 lorebook entries 0 are in use." in captured.err
    assert run(["characters", "push", str(file), "--id", ID, "--public"]) == 2
    assert run(["characters", "push", str(tmp_path / "none.png")]) == 2


def test_a_file_that_repeats_a_key_is_refused(tmp_path: Path, capsys: Any) -> None:
    card, book = tmp_path / "card.json", tmp_path / "book.json"
    card.write_text('{"name": "Nia",\n "greetings": [],\n "name": "Ada"}')
    assert run(["characters", "push", str(card)]) == 2
    assert f"{card}: line 3 repeats the key 'name'." in capsys.readouterr().err
    book.write_text('{"entries": [],\n "entries": []}')
    assert run(["characters", "lorebook", ID, str(book)]) == 2
    assert f"{book}: line 2 repeats the key 'entries'." in capsys.readouterr().err


def test_a_file_beside_is_called_by_its_own_name(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("card.json").write_text('{"name": "Nia", "name": "Ada"}')
    assert run(["characters", "push", "card.json"]) == 2
    assert "error: card.json: line 1 repeats the key 'name'." in capsys.readouterr().err


def test_what_strangers_wrote_is_printed_harmlessly(server: Any, capsys: Any) -> None:
    card = json.dumps({"name": HOSTILE}, ensure_ascii=False).encode()
    server(
        httpx.Response(200, json={"items": [ROW]}),
        httpx.Response(200, json=CHARACTER),
        httpx.Response(200, content=card),
    )
    assert run(["characters", "list"]) == 0
    assert run(["characters", "show", f"{ID}@2"]) == 0
    assert run(["characters", "export", ID]) == 0
    printed = capsys.readouterr().out
    assert is_safe(printed)
    assert "greeting 1:\nHo." in printed
    assert json.loads(printed.splitlines()[-1]) == {"name": HOSTILE}


def test_export_writes_the_format_that_the_file_is_named_after(server: Any, tmp_path: Path) -> None:
    script = server(httpx.Response(200, content=b"PK"))
    file = tmp_path / "back.charx"
    assert run(["characters", "export", f"{ID}@1", str(file)]) == 0
    assert dict(script.requests[0].url.params) == {"format": "charx", "version": "1"}
    assert file.read_bytes() == b"PK"
    assert run(["characters", "export", ID, str(file)]) == 2, "it is there already"
    assert run(["characters", "export", ID, str(tmp_path / "back.gif")]) == 2
    assert run(["characters", "show", f"{ID}@two"]) == 2


def test_deleting_asks_and_all_needs_to_be_said(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(204), httpx.Response(200, json={"characters": 2, "versions": 5}))
    assert run(["characters", "delete", ID]) == 2
    assert run(["characters", "delete", "--yes"]) == 2
    assert run(["characters", "delete", ID, "--all", "--yes"]) == 2
    assert not script.requests
    assert run(["characters", "delete", ID, "--yes"]) == 0
    assert run(["characters", "delete", "--all", "--account", "app", "--yes"]) == 0
    assert script.requests[1].url.query == b"account=app"
    assert "2 characters with 5 versions" in capsys.readouterr().err


@pytest.mark.parametrize(("public", "words"), [(True, "public now"), (False, "private now")])
def test_publish_goes_both_ways(server: Any, capsys: Any, public: bool, words: str) -> None:
    script = server(httpx.Response(200, json=CHARACTER | {"is_public": public}))
    assert run(["characters", "publish", ID, *([] if public else ["--withdraw"])]) == 0
    assert json.loads(script.requests[0].content) == {"is_public": public}
    assert words in capsys.readouterr().err


def test_a_conversation_names_the_character_and_no_bot(server: Any, capsys: Any) -> None:
    opened = {
        "conversation_id": "conv_1",
        "submission_id": "org-model_v1",
        "character": f"{ID}@2",
        "first_message": "Ho.",
    }
    script = server(httpx.Response(201, json=opened))
    command = ["conversations", "open", "--user", "u1", "--consent"]
    assert run([*command, "--character", f"{ID}@2", "--greeting", "1"]) == 0
    sent = json.loads(script.requests[0].content)
    assert (sent["character"], sent["greeting"], "bot" in sent) == (f"{ID}@2", 1, False)
    captured = capsys.readouterr()
    assert (captured.out, "Ho." in captured.err) == ("conv_1\n", True)
    assert run([*command, "--greeting", "1"]) == 2


def test_a_talk_begins_with_the_characters_bot(server: Any) -> None:
    bot = {"name": "Marlowe", "first_message": "Hi.", "post_history": "Short."}
    script = server(
        httpx.Response(200, json=bot),
        httpx.Response(200, json=submission_json()),
        httpx.Response(200, json=reply_json("Ahoy.")),
    )
    assert run(["chat", "org-model_v1", "--character", f"{ID}@2", "-m", "Hello", "--json"]) == 0
    assert script.requests[0].url.path == f"/api/v1/characters/{ID}/bot"
    assert json.loads(script.requests[2].content)["bot"]["post_history"] == "Short."


def test_a_lorebook_is_printed_replaced_and_removed(
    server: Any, tmp_path: Path, capsys: Any
) -> None:
    book = {"entries": [{"keys": ["goose"], "content": HOSTILE}]}
    file = tmp_path / "book.json"
    file.write_text(json.dumps(book))
    answers = [httpx.Response(200, json=CHARACTER | {"lorebook": book})]
    answers += [httpx.Response(201, json=CHARACTER | {"lorebook": book}) for _ in range(2)]
    script = server(*answers)
    assert run(["characters", "lorebook", f"{ID}@1"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["entries"][0]["content"] == HOSTILE
    assert is_safe(printed)
    assert run(["characters", "lorebook", ID, str(file)]) == 0
    assert run(["characters", "lorebook", ID, "--remove", "--json"]) == 0
    _, replaced, removed = script.requests
    path = f"/api/v1/characters/{ID}/lorebook"
    assert (replaced.method, replaced.url.path) == ("PUT", path)
    assert json.loads(replaced.content)["entries"][0]["keys"] == ["goose"]
    assert (removed.method, removed.url.path) == ("DELETE", path)
    assert "with 1 lorebook entry." in capsys.readouterr().err


def test_file_that_is_no_lorebook_is_refused_unsent(
    server: Any, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "book.json"
    script = server()
    for content in ("[]", "{", '{"entries": [{}]}', '{"entrys": []}'):
        file.write_text(content)
        assert run(["characters", "lorebook", ID, str(file)]) == 2
        assert "is no lorebook" in capsys.readouterr().err
    assert script.requests == []
