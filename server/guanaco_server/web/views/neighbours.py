"""Says how few votes decide between neighbours on the board."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guanaco.competitions import Competition
from guanaco.errors import NewerVersionNeeded, SubmissionNotFound
from guanaco.leaderboard import LeaderboardRow, StabilityPair
from guanaco_server.leaderboard.stability import StabilityService


@dataclass(frozen=True)
class DecidingVotes:
    """How few votes decide a submission's place: in a word or two, and as a sentence."""

    short: str
    sentence: str


async def sentences_of(
    stability: StabilityService, competition: Competition, row: LeaderboardRow | None
) -> list[str]:
    """Return a sentence for each neighbour."""
    if row is None or row.rank is None:
        return []
    try:
        found = await stability.pairs(competition.id, row.submission_id)
    except (SubmissionNotFound, NewerVersionNeeded):  # its votes went since the board was read
        return []
    return [_sentence(pair) for pair in found.pairs]


def deciding_votes(rows: Iterable[LeaderboardRow]) -> dict[str, DecidingVotes]:
    """Return by submission how few votes decide between it and the one above."""
    return {
        row.submission_id: DecidingVotes(_short(row.neighbour), _sentence(row.neighbour))
        for row in rows
        if row.neighbour is not None
    }


def _short(pair: StabilityPair) -> str:
    if pair.votes is None:
        return "not found"
    return f"{pair.votes:,}" if pair.is_fewest else f"about {pair.votes:,}"


def _sentence(pair: StabilityPair) -> str:
    now = "stands above" if pair.are_apart else "shares its rank with"
    turned = "their intervals would meet" if pair.are_apart else "they would change places"
    if pair.votes is None:
        return f"{pair.above} {now} {pair.below}, and no 2,000 votes decide that."
    votes = "1 vote" if pair.votes == 1 else f"{pair.votes:,} votes"
    if not pair.is_fewest:
        votes = f"about {votes}"
    return f"{pair.above} {now} {pair.below}; without {votes} {turned}."
