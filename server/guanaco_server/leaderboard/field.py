"""Says who is compared in a competition: one answer for the verdict, the planner of `decide` and what a rating is worth.

    live        admitted, published and taking conversations; one without a vote is open
    withdrawn   has votes, and takes no conversations any more; it is compared and labelled, and holds up no verdict,
                for nothing more will be known of it

The error is shared by all who were ever members: by everybody of both kinds.

The field of a competition that is over is as it was at its end: who is deployed, torn down or submitted later changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco.leaderboard import VerdictPair, VerdictState
from guanaco.submissions import Status
from guanaco_server.competitions.entry import admitted, ended_at
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import queries
from guanaco_server.statistics.duel_strengths import PairCounts, leader_of
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.catalog import PastEntrant, ServingSubmission
from guanaco_server.submissions.service import SubmissionService

NO_VOTES = VoteCount(0, 0)
MAX_KEPT = 100  # competitions that are over


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


class FieldReader:
    """Reads fields, with the votes that are counted. Who took conversations at the end of a competition is read once."""

    def __init__(self, database: Database, submissions: SubmissionService) -> None:
        self._database = database
        self._catalog = submissions.catalog
        self._at_end: OrderedDict[tuple[str, datetime], Sequence[PastEntrant]] = OrderedDict()

    async def read(self, competition: Competition, now: datetime) -> Field:
        end = ended_at(competition, now)
        serving = await self._catalog.list_serving() if end is None else []
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.vote_counts(session, competition.id)
            past = [] if end is None else await self._deployed_at(session, competition, end)
        votes = {name: VoteCount(up, down) for _, name, up, down in rows}
        if end is None:
            return running_field(competition, serving, votes)
        return final_field(competition, past, votes)

    async def _deployed_at(
        self, session: AsyncSession, competition: Competition, end: datetime
    ) -> Sequence[PastEntrant]:
        key = competition.id, end
        if key not in self._at_end:
            self._at_end[key] = await self._catalog.deployed_at(session, end)
            if len(self._at_end) > MAX_KEPT:
                self._at_end.popitem(last=False)
        return self._at_end[key]


def running_field(
    competition: Competition,
    serving: Iterable[ServingSubmission],
    votes: Mapping[str, VoteCount],
) -> Field:
    """Return the field of a competition that is not over, of all submissions that are served and the votes by submission."""
    taking = [one for one in serving if one.status is Status.DEPLOYED and one.is_understood]
    live = {one.id for one in admitted(competition, taking) if _is_assigned(competition, one.id)}
    rated = {name: count for name, count in votes.items() if count.total}
    return Field({name: rated.get(name, NO_VOTES) for name in rated.keys() | live}, frozenset(live))


def final_field(
    competition: Competition, deployed: Iterable[PastEntrant], votes: Mapping[str, VoteCount]
) -> Field:
    """Return the field of a competition that is over, of all who were deployed at its end.

    One without a vote will get none and has no place. Where nobody with a vote was deployed, everybody with one has a place.
    """
    rated = {name: count for name, count in votes.items() if count.total}
    live = {
        one.id
        for one in admitted(competition, deployed)
        if one.id in rated and _is_assigned(competition, one.id)
    }
    return Field(rated, frozenset(live or rated))


def _is_assigned(competition: Competition, submission_id: str) -> bool:
    return competition.assignment.weights.get(submission_id, 1.0) > 0
