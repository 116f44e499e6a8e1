"""Says on a submission's page how few votes decide between it and its neighbours on the board."""

from __future__ import annotations

from guanaco.competitions import Competition, RankingRule
from guanaco.errors import SubmissionNotFound
from guanaco.leaderboard import LeaderboardRow, StabilityPair
from guanaco_server.leaderboard.stability import StabilityService


async def sentences_of(
    stability: StabilityService, competition: Competition, row: LeaderboardRow | None
) -> list[str]:
    """Return a sentence for each neighbour. By thumbs only: a page must not wait for the fits that strengths need."""
    if row is None or row.rank is None or competition.ranking is not RankingRule.THUMBS_UP:
        return []
    try:
        found = await stability.pairs(competition.id, row.submission_id)
    except SubmissionNotFound:  # its votes went since the board was read
        return []
    return [_sentence(pair) for pair in found.pairs]


def _sentence(pair: StabilityPair) -> str:
    now = "stands above" if pair.are_apart else "shares its rank with"
    turned = "their intervals would meet" if pair.are_apart else "they would change places"
    if pair.votes is None:
        return f"{pair.above} {now} {pair.below}, and no 2,000 votes decide that."
    votes = "1 vote" if pair.votes == 1 else f"{pair.votes:,} votes"
    return f"{pair.above} {now} {pair.below}; without {votes} {turned}."
