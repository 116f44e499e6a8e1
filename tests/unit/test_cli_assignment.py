"""`guanaco assignment` against scripted answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from guanaco_cli.main import run
from tests.fixtures.cli import profile, server

__all__ = ["profile", "server"]

DECISION = {"snapshot": "3f9c", "seed": 7, "key": "conv_1", "seen": ["b_v1"], "barred": []}
FOUND = {
    "conversation_id": "conv_1",
    "competition": "autumn",
    "submission_id": "a_v1",
    "decision": DECISION,
    "entries": 24,
    "replayed": "a_v1",
    "is_same": True,
    "chance": 0.25,
}


def test_recomputed_choice_is_shown_with_all_it_depended_on(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=FOUND))
    assert run(["assignment", "conv_1"]) == 0
    assert script.requests[0].url.path == "/api/v1/conversations/conv_1/assignment"
    shown = capsys.readouterr()
    for fact in ("autumn", "a_v1", "3f9c", "7", "24", "b_v1"):
        assert fact in shown.out
    assert "The same." in shown.err


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"replayed": "c_v1", "is_same": False}, 1, "Another one"),
        ({"entries": None, "replayed": None, "is_same": None}, 0, "cannot be made again"),
        ({"decision": None, "replayed": None, "is_same": None}, 0, "Nothing was recorded"),
    ],
)
def test_what_comes_out_otherwise_is_said(
    server: Any, capsys: Any, changes: dict[str, Any], status: int, says: str
) -> None:
    server(httpx.Response(200, json=FOUND | changes))
    assert run(["assignment", "conv_1"]) == status
    assert says in capsys.readouterr().err


def test_it_is_printed_as_json(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=FOUND))
    assert run(["assignment", "conv_1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FOUND
