"""The board that pages share."""

from __future__ import annotations

from datetime import UTC, datetime

from guanaco.competitions import RankingRule
from guanaco.leaderboard import Leaderboard, LeaderboardRow, group_by_sweep
from guanaco.submissions import Status
from guanaco_server.web.views.boards import Boards


async def test_board_is_reread_for_a_submission_it_lacks() -> None:
    names: list[str] = ["one"]

    async def read(competition: str) -> Leaderboard:
        rows = [LeaderboardRow.model_construct(submission_id=name) for name in names]
        return Leaderboard.model_construct(
            at=datetime.now(UTC),
            competition=competition,
            ranking=RankingRule.THUMBS_UP,
            rows=rows,
        )

    boards = Boards(read, fresh_s=1_000_000)
    first = await boards.board("open")
    names.append("two")
    assert await boards.board("open", "one") is first
    held = await boards.board("open", "two")
    assert [row.submission_id for row in held.rows] == ["one", "two"]
    assert await boards.board("open") is held


def row(name: str, status: Status, score: float | None = None) -> LeaderboardRow:
    return LeaderboardRow.model_construct(
        submission_id=name, status=status, score=score, sweep="sweep_1"
    )


def test_a_sweeps_row_is_no_retired_variant_while_others_serve() -> None:
    gone, serves = row("gone", Status.TORN_DOWN), row("serves", Status.DEPLOYED)
    assert group_by_sweep([gone, serves]) == ([serves], {"serves": 1})
    assert group_by_sweep([gone]) == ([gone], {})
    scored = row("scored", Status.TORN_DOWN, 0.5)
    assert group_by_sweep([scored, serves]) == ([scored], {"scored": 1})
