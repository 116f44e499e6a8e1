"""`guanaco webhook`"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from guanaco.errors import WebhookNotFound
from guanaco_cli import sending
from guanaco_cli.main import run
from guanaco_cli.sending import IN_WORDS
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import AT, refused

__all__ = ["profile", "server"]

URL = "https://example.org/hook"


def delivery_json(**changes: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "event": "deployed",
        "submission_id": "org-model_v1",
        "state": "pending",
        "attempts": 0,
        "created_at": AT,
        "last_attempt_at": None,
        "next_attempt_at": AT,
        "last_result": None,
    } | changes


def webhook_json(*deliveries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "url": URL,
        "feedback_every": 50,
        "created_at": AT,
        "old_secret_until": None,
        "deliveries": list(deliveries),
    } | changes


def test_a_new_webhooks_secret_is_the_only_thing_on_stdout(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=webhook_json(secret="whsec_x")))
    assert run(["webhook", "set", URL, "--every", "50"]) == 0
    assert json.loads(script.requests[0].content) == {"url": URL, "feedback_every": 50}
    assert script.requests[0].method == "PUT"
    shown = capsys.readouterr()
    assert shown.out == "whsec_x\n"
    assert "only now" in shown.err


def test_a_changed_webhook_keeps_its_secret_and_says_so(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=webhook_json()))
    assert run(["webhook", "set", URL]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "secret is the same" in shown.err


def test_show_lists_the_last_deliveries_and_cannot_drive_the_terminal(
    server: Any, capsys: Any
) -> None:
    late = delivery_json(state="given_up", attempts=11, last_result=f"answered 503 {HOSTILE}")
    server(httpx.Response(200, json=webhook_json(late, old_secret_until=AT)))
    assert run(["webhook", "show"]) == 0
    out = capsys.readouterr().out
    assert is_safe(out)
    assert "every 50 ratings" in out
    assert "given_up" in out
    assert "old secret signs until" in out


@pytest.mark.parametrize(
    ("state", "result", "status"),
    [("delivered", "answered 200", 0), ("pending", "answered 500", 1)],
)
def test_test_message_is_awaited_and_decides_the_exit_status(
    state: str, result: str, status: int, server: Any, capsys: Any
) -> None:
    tried = delivery_json(state=state, attempts=1, last_result=result)
    server(
        httpx.Response(202, json=delivery_json()),
        httpx.Response(200, json=webhook_json(delivery_json(id="msg_other"), tried)),
    )
    assert run(["webhook", "test"]) == status
    assert capsys.readouterr().out == f"{IN_WORDS[state]}: {result}\n"


def test_unsent_test_message_is_not_awaited_for_ever(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "WAIT_S", 0)
    server(httpx.Response(202, json=delivery_json()))
    assert run(["webhook", "test"]) == 0
    assert "waits to be sent" in capsys.readouterr().err


def test_rotating_shows_the_new_secret_and_the_old_ones_end(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=webhook_json(secret="whsec_new", old_secret_until=AT)))
    assert run(["webhook", "rotate"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "whsec_new\n"
    assert "Until 2026-01-02" in shown.err


def test_removing_is_one_request(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=webhook_json()))
    assert run(["webhook", "remove", "--yes"]) == 0
    assert script.requests[0].method == "DELETE"
    assert URL in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "test", "rotate", "remove"])
def test_without_a_webhook_each_says_how_to_set_one(verb: str, server: Any, capsys: Any) -> None:
    server(refused(WebhookNotFound(), 404))
    assert run(["webhook", verb, *(["--yes"] if verb == "remove" else [])]) == 1
    assert "guanaco webhook set URL" in capsys.readouterr().err


def alert_message(**changes: Any) -> dict[str, Any]:
    return {
        "id": 7, "kind": "test", "alert": None, "state": "pending", "attempts": 0, "created_at": AT,
        "last_attempt_at": None, "next_attempt_at": AT, "last_result": None,
    } | changes  # fmt: skip


@pytest.mark.parametrize(("state", "status"), [("delivered", 0), ("pending", 1), ("given_up", 1)])
def test_test_alert_is_awaited_and_decides_the_exit_status(
    state: str, status: int, server: Any, capsys: Any
) -> None:
    tried = alert_message(state=state, attempts=1, last_result=f"answered {HOSTILE}")
    found = {"firing": [], "ended": [], "checks": [], "messages": [alert_message(id=6), tried]}
    server(httpx.Response(202, json=alert_message()), httpx.Response(200, json=found))
    assert run(["alerts", "test"]) == status
    shown = capsys.readouterr().out
    assert shown.startswith(f"{IN_WORDS[state]}: answered")
    assert is_safe(shown)


def test_unsent_test_alert_is_not_awaited_for_ever(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "WAIT_S", 0)
    server(httpx.Response(202, json=alert_message()))
    assert run(["alerts", "test"]) == 0
    assert "waits to be sent" in capsys.readouterr().err
