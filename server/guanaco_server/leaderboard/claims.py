"""Keeps what a board has once said, so that it is told once: that its verdict is settled, and that a submission's rank has changed.

    settled RULE WITHIN   the leader was within the margin of the best; a row for each member of the field
    rank N                the submission came to this rank from another one

A settled claim stands: it was true of the votes that there were, with the error of docs/scores.md for all looks together, and
whoever joins later is no part of it. So the first one is kept, and shown beside what is known now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco.leaderboard import LeaderboardVerdict
from guanaco_server.database.bulk import insert_missing
from guanaco_server.leaderboard.tables import BoardClaimRow

SETTLED = "settled"
RANK = "rank"


@dataclass(frozen=True)
class BoardClaim:
    """A board's claim about a submission. ``facts`` say more: the leader and the margin, or the rank and the one before."""

    competition: str
    claim: str
    submission_id: str
    facts: dict[str, Any]
    at: datetime

    @property
    def is_settled(self) -> bool:
        return self.claim.startswith(SETTLED)


def rank_claim(
    competition: str, submission_id: str, rank: int, was: int, at: datetime
) -> BoardClaim:
    facts = {"rank": rank, "was": was}
    return BoardClaim(competition, f"{RANK} {rank}", submission_id, facts, at)


def settled_claims(competition: Competition, verdict: LeaderboardVerdict) -> list[BoardClaim]:
    """Return the claim for the leader and each other one that takes part, of a verdict that is settled."""
    assert verdict.leader is not None, "a settled verdict has a leader"
    name, facts = settled_name(competition), {"leader": verdict.leader, "within": verdict.within}
    states = {verdict.leader: "leads"} | {
        pair.submission_id: str(pair.state) for pair in verdict.pairs if not pair.is_withdrawn
    }
    return [
        BoardClaim(competition.id, name, one, facts | {"state": state}, verdict.at)
        for one, state in states.items()
    ]


def settled_name(competition: Competition) -> str:
    """Another rule, margin or kind of votes is another claim."""
    kind = "duels" if competition.is_settled_by_duels else competition.ranking.value
    return f"{SETTLED} {kind} {competition.assignment.within:g}"


async def keep(session: AsyncSession, claims: Iterable[BoardClaim]) -> None:
    """Store claims; one that was made before stays as it was."""
    rows = [vars(one) | {"facts": json.dumps(one.facts, sort_keys=True)} for one in claims]
    await insert_missing(session, BoardClaimRow, rows)


async def settled(session: AsyncSession, competition: Competition) -> Mapping[str, object] | None:
    """Return when the verdict was first settled and who led then, as the verdict's fields; None if it never was."""
    row = BoardClaimRow
    found = (
        await session.execute(
            select(row.facts, row.at)
            .where(row.competition == competition.id, row.claim == settled_name(competition))
            .limit(1)
        )
    ).first()
    if found is None:
        return None
    return {"settled_at": found.at, "settled_leader": json.loads(found.facts)["leader"]}


async def since(session: AsyncSession, at: datetime) -> Sequence[BoardClaim]:
    """Return the claims that were made since, the oldest first."""
    row = BoardClaimRow
    rows = await session.execute(
        select(row.competition, row.claim, row.submission_id, row.facts, row.at)
        .where(row.at >= at)
        .order_by(row.at, row.competition, row.claim, row.submission_id)
    )
    return [
        BoardClaim(one.competition, one.claim, one.submission_id, json.loads(one.facts), one.at)
        for one in rows
    ]
