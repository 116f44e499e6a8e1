"""`guanaco duels`"""

from __future__ import annotations

from typing import Any

import httpx

from guanaco_cli.main import run
from tests.fixtures.cli import profile, server
from tests.fixtures.wire import AT

__all__ = ["profile", "server"]


def test_rivals_of_battles_and_regenerations_are_shown_together(server: Any, capsys: Any) -> None:
    pair = {"competition": "autumn", "own": "x_v1", "rival": "y_v1", "at": AT}
    found = [
        pair | {"battle_id": "battle_1"},
        pair | {"regeneration_id": "regeneration_2", "drawn": "y_v1", "is_same": False},
    ]
    script = server(httpx.Response(200, json=found), httpx.Response(200, json=found))
    assert run(["duels", "rival", "conv_1"]) == 1, "one choice differs"
    assert script.requests[0].url.path == "/api/v1/conversations/conv_1/rivals"
    said = capsys.readouterr().out
    assert "battle_1" in said
    assert "the user got the reply of" in said
    assert run(["duels", "rival", "conv_1", "regeneration_9"]) == 1
    assert "no compared regeneration regeneration_9" in capsys.readouterr().err
