"""A frozen competition's board: ranks, scores and votes are its season's, whatever is erased or allowed later."""

from __future__ import annotations

import json
from dataclasses import dataclass

from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.leaderboard.estimates import proportion


@dataclass(frozen=True)
class FinalEntry:
    """A submission's line of the season."""

    rank: int | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    up: int = 0
    down: int = 0

    def settle(self, metrics: SubmissionMetrics) -> SubmissionMetrics:
        """The metrics with the season's votes; the others are of conversations, which a freeze does not end."""
        ratio = proportion(self.up, self.up + self.down)
        return metrics.model_copy(
            update={
                "thumbs_up": self.up,
                "thumbs_down": self.down,
                "thumbs_up_ratio": ratio.value if ratio else None,
                "interval_low": ratio.low if ratio else None,
                "interval_high": ratio.high if ratio else None,
            }
        )


NO_VOTES = FinalEntry()


def entries_of(ranking: bytes) -> dict[str, FinalEntry]:
    """By submission, from a season's canonical JSON."""
    return {
        one["submission_id"]: FinalEntry(
            rank=one["rank"],
            score=float(one["score"]),
            low=float(one["low"]),
            high=float(one["high"]),
            up=one["thumbs_up"],
            down=one["thumbs_down"],
        )
        for one in json.loads(ranking)["standings"]
    }
