"""`guanaco competitions`, `guanaco votes`, and the leaderboard of a competition"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from guanaco.competitions import OPEN
from guanaco.errors import NotFound
from guanaco.leaderboard import LeaderboardSort
from guanaco_cli import leaderboard
from guanaco_cli.main import run
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import AT, refused

__all__ = ["profile", "server"]

COMPETITION = {"id": "autumn", "name": "Autumn", "starts_at": AT}
SEASON = {"competition": "autumn", "frozen_at": AT, "sha256": "beef", "ranking": "{}"}
CHECK = {"competition": "autumn", "sha256": "beef", "recomputed_sha256": "dead", "is_same": False}
FLAG = {
    "feedback_id": "fb_1", "submission_id": "x", "competition": "autumn", "rule": "burst", "evidence": HOSTILE,
    "at": AT, "lifted_at": None, "allowed_at": AT, "allowed_by": "root",
}  # fmt: skip

NO_VERDICT = refused(NotFound("There is no such page."), 404)  # as a platform of an older version


def row(submission_id: str, rank: int | None, **more: Any) -> dict[str, Any]:
    return {
        "submission_id": submission_id, "rank": rank, "thumbs_up": 1, "thumbs_down": 1, "feedback_count": 2,
        "thumbs_up_ratio": 0.5, "interval_low": 0.1, "interval_high": 0.9, "conversation_count": 2,
        "mean_conversation_length": 4.0, "developer": "ada", "name": "x", "repo": "org/x", "status": "deployed",
        "created_at": AT,
    } | more  # fmt: skip


def board(ranking: str, *rows: dict[str, Any]) -> httpx.Response:
    answer = {"at": AT, "competition": "autumn", "ranking": ranking, "rows": rows}
    return httpx.Response(200, json=answer)


def shown_rows(capsys: Any) -> list[list[str]]:
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [cells for cells in lines if any(cell.endswith("_v1") for cell in cells)]


def test_a_competition_is_put_of_a_file(server: Any, capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "autumn.yaml"
    file.write_text("name: Autumn\nstarts_at: 2026-11-01T00:00:00Z\nentry: {per_developer: 3}\n")
    script = server(httpx.Response(200, json=COMPETITION))
    assert run(["competitions", "put", "autumn", str(file)]) == 0
    request = script.requests[0]
    assert (request.method, request.url.path) == ("PUT", "/api/v1/competitions/autumn")
    sent = json.loads(request.content)
    assert sent["starts_at"] == "2026-11-01T00:00:00Z"
    assert sent["entry"]["per_developer"] == 3
    assert "autumn runs from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\nentry: {\n", "neither YAML nor JSON: line 3: "),
        ("name: a\nentry: {per_dev: 3}\n", "perhaps you mean per_developer."),
        ("name: a\nstarts_at: 2026-11-01T00:00:00\n", "starts_at: "),
        ("name: a\nstarts_at: 2026-11-01T00:00:00Z\nrules: 1\n", "rules: "),
    ],
)
def test_file_that_is_no_competition_is_refused_in_a_sentence(
    text: str, says: str, server: Any, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    script = server(httpx.Response(200, json=COMPETITION))
    assert run(["competitions", "put", "autumn", str(file)]) in (1, 2)
    assert says in capsys.readouterr().err
    assert not script.requests


def test_a_freeze_is_confirmed_first(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=SEASON))
    assert run(["competitions", "freeze", "autumn"]) == 2
    assert not script.requests
    assert run(["competitions", "freeze", "autumn", "--yes"]) == 0
    assert script.requests[0].url.path == "/api/v1/competitions/autumn/freeze"
    assert capsys.readouterr().out.split() == ["beef"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_recomputed_ranking_that_differs_fails(form: list[str], server: Any, capsys: Any) -> None:
    reasons = ["1 erasure came after the freeze."]
    server(httpx.Response(200, json=CHECK), httpx.Response(200, json=CHECK | {"reasons": reasons}))
    assert run(["competitions", "recompute", "autumn", *form]) == 1
    shown = capsys.readouterr()
    assert "beef" in shown.out
    assert "dead" in shown.out
    assert ("No erasure or deletion since the freeze is known" in shown.err) is not bool(form)
    assert run(["competitions", "recompute", "autumn", *form]) == 1
    shown = capsys.readouterr()
    assert reasons[0] in (shown.out if form else shown.err)


def test_flags_are_read_by_competition_and_cannot_control_the_terminal(
    server: Any, capsys: Any
) -> None:
    script = server(httpx.Response(200, json=[FLAG]))
    assert run(["votes", "flags", "--competition", "autumn", "--limit", "5"]) == 0
    assert dict(script.requests[0].url.params) == {"competition": "autumn", "limit": "5"}
    shown = capsys.readouterr().out
    assert "allowed by root" in shown
    assert is_safe(shown)
    assert run(["votes", "allow", "fb_1"]) == 0
    assert script.requests[1].url.path == "/api/v1/votes/fb_1/allow"
    assert "burst" in capsys.readouterr().err


def test_shared_ranks_and_scores_are_shown_with_their_interval(server: Any, capsys: Any) -> None:
    score = {"score": 1_034.4, "score_low": 980, "score_high": 1_090.2}
    script = server(
        board("bradley_terry", row("a_v1", 1, **score), row("b_v1", 1), row("c_v1", 3), row("d_v1", None)),
        NO_VERDICT,
    )  # fmt: skip
    assert run(["leaderboard", "--competition", "autumn"]) == 0
    assert dict(script.requests[0].url.params) == {"competition": "autumn", "sort": "rank"}
    rows = shown_rows(capsys)
    assert [cells[0] for cells in rows] == ["=1", "=1", "3", "d_v1"]
    assert rows[0][4:] == ["1,034", "980", "to", "1,090", "50%", "10%", "to", "90%", "2", "4.0"]


def test_score_equal_to_the_ratio_is_shown_once(server: Any, capsys: Any) -> None:
    score = {"score": 0.5, "score_low": 0.05, "score_high": 0.95}
    retention = {"value": 0.25, "low": None, "high": None, "n": 4}
    server(board("thumbs_up", row("a_v1", 1, retention=retention, **score)))
    assert run(["leaderboard", "--sort", "retention"]) == 0
    always, one_look = ["5%", "to", "95%"], ["10%", "to", "90%"]
    cells = ["1", "a_v1", "ada", "deployed", "50%", *always, *one_look, "2", "4.0", "25%"]
    assert shown_rows(capsys) == [cells]


def test_votes_that_decide_stand_beside_each_place(server: Any, capsys: Any) -> None:
    pair = {"above": "a_v1", "below": "b_v1", "are_apart": True, "votes": 12, "is_fewest": False}
    server(board("thumbs_up", row("a_v1", 1), row("b_v1", 2, neighbour=pair)), NO_VERDICT)
    assert run(["leaderboard"]) == 0
    first, second = shown_rows(capsys)
    assert "about" not in first
    assert second[second.index("about") + 1] == "12"


@pytest.mark.slow
def test_the_choices_of_sort_are_the_servers(server: Any, capsys: Any) -> None:
    choices, _ = get_args(leaderboard.Sort)
    assert list(get_args(choices)) == list(LeaderboardSort)
    for sort in LeaderboardSort:
        script = server(board("thumbs_up", row("a_v1", 1)), NO_VERDICT)
        assert run(["leaderboard", "--sort", sort]) == 0
        params = dict(script.requests[0].url.params)
        assert params == {"competition": OPEN, "sort": sort.value}
    assert run(["leaderboard", "--sort", "luck"]) == 2
