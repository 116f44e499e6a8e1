"""Says who is compared in a competition: one answer for the verdict, the planner of `decide` and what a rating is worth.

    live        admitted, published and taking conversations; one without a vote is open
    withdrawn   has votes, and takes no conversations any more; it is compared and labelled, and holds up no verdict,
                for nothing more will be known of it

The error is shared by all who were ever members: by everybody of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco.leaderboard import VerdictPair, VerdictState
from guanaco.submissions import Status
from guanaco_server.competitions.entry import admitted
from guanaco_server.leaderboard.counting import queries
from guanaco_server.statistics.duel_strengths import PairCounts, leader_of
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.catalog import ServingSubmission

NO_VOTES = VoteCount(0, 0)


@dataclass(frozen=True)
class Field:
    """``votes`` are those of everybody who was ever a member; ``live`` are the members that take conversations."""

    votes: Mapping[str, VoteCount]
    live: frozenset[str]

    @property
    def members(self) -> int:
        return len(self.votes)

    def is_withdrawn(self, submission_id: str) -> bool:
        return submission_id not in self.live


def leader_in_duels(field: Field, names: Sequence[str], counts: PairCounts) -> str | None:
    """Return who leads in duels among these; a withdrawn one only where nobody else has any."""
    live = [name for name in names if not field.is_withdrawn(name)]
    return leader_of(live, counts) or leader_of(names, counts)


def placed(
    leader: str, pairs: Iterable[VerdictPair], field: Field
) -> tuple[list[VerdictPair], bool]:
    """Label the pairs whose other one is withdrawn, and add who takes part without a vote, which is open.

    Returns them, and whether all are settled that have to be: withdrawn ones only where nobody else is left.
    """
    found = [
        pair.model_copy(update={"is_withdrawn": field.is_withdrawn(pair.submission_id)})
        for pair in pairs
    ]
    named = {leader} | {pair.submission_id for pair in found}
    found += [
        VerdictPair(submission_id=name, state=VerdictState.OPEN)
        for name in sorted(field.live - named)
    ]
    required = [pair for pair in found if not pair.is_withdrawn] or found
    is_decided = bool(required) and all(pair.state is not VerdictState.OPEN for pair in required)
    return found, is_decided


async def read_field(
    session: AsyncSession,
    competition: Competition,
    serving: Iterable[ServingSubmission],
    now: datetime,
) -> Field:
    """Return the field of a competition, with the votes that are counted."""
    rows = await queries.vote_counts(session, competition.id)
    votes = {name: VoteCount(up, down) for _, name, up, down in rows}
    is_over = competition.frozen_at is not None or not competition.is_running(now)
    return field_of(competition, serving, votes, is_over=is_over)


def field_of(
    competition: Competition,
    serving: Iterable[ServingSubmission],
    votes: Mapping[str, VoteCount],
    *,
    is_over: bool,
) -> Field:
    """Return the field.

    Args:
        competition: The competition.
        serving: All submissions that are served.
        votes: The votes in the competition by submission.
        is_over: Whether the competition has ended. One without a vote will get none then, and whoever is served has its place; where nobody
            is served any more, everybody with a vote has.

    Returns:
        The field.
    """
    taking = [one for one in serving if one.status is Status.DEPLOYED and one.is_understood]
    live = {
        one.id
        for one in admitted(competition, taking)
        if competition.assignment.weights.get(one.id, 1.0) > 0
    }
    rated = {name: count for name, count in votes.items() if count.total}
    if is_over:
        live = live & rated.keys() or set(rated)
    return Field({name: rated.get(name, NO_VOTES) for name in rated.keys() | live}, frozenset(live))
