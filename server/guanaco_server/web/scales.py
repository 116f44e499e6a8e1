"""How a competition's scores are written and drawn: shares from 0 to 100 %, strengths around 1,000."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.competitions import RankingRule
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_server.web import charts
from guanaco_server.web.words import NOTHING, percent

AVERAGE = 1_000.0
LEAST_REACH = 100.0


@dataclass(frozen=True)
class Scale:
    """From ``middle - reach`` to ``middle + reach``; ``is_votes`` where the score is the thumbs-up ratio itself."""

    is_share: bool
    is_votes: bool
    middle: float
    reach: float

    def show(self, score: float | None) -> str:
        if self.is_share:
            return percent(score if score is None else min(1.0, max(0.0, score)))
        return NOTHING if score is None else f"{score:,.0f}"

    @property
    def name(self) -> str:
        return "thumbs-up ratio" if self.is_votes else "score"

    @property
    def least_change(self) -> float:
        """A smaller one is drawn as small as it is."""
        return 0.05 if self.is_share else LEAST_REACH / 4

    def interval(self, row: LeaderboardRow) -> charts.Interval | None:
        low, at, high = (self._place(end) for end in (row.score_low, row.score, row.score_high))
        return charts.interval(low, at, high)

    def _place(self, score: float | None) -> float | None:
        if score is None:
            return None
        return min(1.0, max(0.0, 0.5 + (score - self.middle) / self.reach / 2))


def scale_of(board: Leaderboard) -> Scale:
    """The same for all pages of a board, so that its drawings compare."""
    if board.ranking is not RankingRule.BRADLEY_TERRY:
        is_votes = board.ranking is RankingRule.THUMBS_UP
        return Scale(is_share=True, is_votes=is_votes, middle=0.5, reach=0.5)
    ends = [end for row in board.rows for end in (row.score_low, row.score_high) if end is not None]
    reach = max([LEAST_REACH, *(abs(end - AVERAGE) for end in ends)])
    return Scale(is_share=False, is_votes=False, middle=AVERAGE, reach=reach)
