"""Says for each pair of neighbours on a board how few votes decide it (ranking/strengths/influence.py)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco.competitions import OPEN, Competition, RankingRule
from guanaco.errors import NewerVersionNeeded, SubmissionNotFound
from guanaco.leaderboard import LeaderboardStability, SettledDuels, StabilityPair
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.field import Field, leader_in_duels, read_field
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelVotes
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.ranking.strengths.influence import (
    Pair,
    RankedVotes,
    neighbours,
    weakest_votes,
)
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.duel_decisions import fewest_duels, needed_evidence
from guanaco_server.statistics.duel_strengths import duels_between, members_of
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.service import SubmissionService

FRESH = timedelta(minutes=5)
MAX_CACHED = 64
PAIRS_BY_THUMBS = 50  # milliseconds each
PAIRS_BY_STRENGTH = 5  # seconds each with a million votes

Question = tuple[str, str | None]


@dataclass(frozen=True)
class _CachedStability:
    at: datetime
    found: LeaderboardStability


class StabilityService:
    """Answers one question at a time, and keeps each answer for some minutes: anybody may ask."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        competitions: CompetitionService,
        submissions: SubmissionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._submissions = submissions
        self._duels = DuelReader(database, submissions)
        self._one_at_a_time = asyncio.Lock()
        self._cached: OrderedDict[Question, _CachedStability] = OrderedDict()

    async def pairs(
        self, competition_id: str = OPEN, submission_id: str | None = None
    ) -> LeaderboardStability:
        """Return the pairs at the top of the board, or those that a submission is in.

        Raises:
            SubmissionNotFound: The submission has no rank in that competition.
            NewerVersionNeeded: This version does not know the competition's rule.
        """
        competition = await self._competitions.find(competition_id)
        async with self._one_at_a_time:
            question, now = (competition_id, submission_id), self._clock.now()
            known = self._cached.get(question)
            if known is None or now - known.at >= FRESH:
                known = _CachedStability(now, await self._find(competition, submission_id, now))
                self._cached[question] = known
                self._cached.move_to_end(question)
                if len(self._cached) > MAX_CACHED:
                    self._cached.popitem(last=False)
            return known.found

    async def _find(
        self, competition: Competition, submission_id: str | None, now: datetime
    ) -> LeaderboardStability:
        if competition.ranking.is_unknown:
            raise NewerVersionNeeded(f"a competition that is ranked by {competition.ranking}")
        ballots = await self._read(competition)
        pairs = await threads.PAGES.run(_pairs, ballots, submission_id)
        settled = None
        if competition.is_settled_by_duels:
            duels = await self._duels.votes(competition)
            serving = await self._submissions.catalog.list_serving()
            async with self._database.read(may_be_stale=True) as session:
                field = await read_field(session, competition, serving, now)
            settled = await threads.PAGES.run(_settled, duels, competition.assignment.within, field)
        return LeaderboardStability(
            at=now,
            competition=competition.id,
            ranking=competition.ranking,
            pairs=[StabilityPair(**vars(pair)) for pair in pairs],
            duels=settled,
        )

    async def _read(self, competition: Competition) -> RankedVotes:
        """Read the ballots. For a board by thumbs the counts are enough; the other rules need each user's votes."""
        if competition.ranking is not RankingRule.THUMBS_UP:
            duels = await self._duels.read(competition)
            async with self._database.read(may_be_stale=True) as session:
                votes = await queries.votes_in(session, competition.id)
            return await threads.PAGES.run(RankedVotes.of, competition.ranking, votes, duels)
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.vote_counts(session, competition.id)
        counts = {name: VoteCount(up, down) for _, name, up, down in rows}
        return RankedVotes(competition.ranking, counts, (), ())


def _settled(duels: DuelVotes, within: float, field: Field) -> SettledDuels | None:
    """Find the pair of the leader that the fewest duels decide, of those that are settled and that hold up the verdict."""
    counts, names = duels.by_pair(), sorted(duels.counts())
    leader = leader_in_duels(field, names, counts)
    if leader is None:
        return None
    others = [name for name in names if name != leader]
    others = [name for name in others if not field.is_withdrawn(name)] or others
    needed = needed_evidence(members_of(counts))
    found = [
        (fewest, name)
        for name in others
        if (
            fewest := fewest_duels(
                duels_between(counts, leader, name), margin=within, needed=needed
            )
        )
        is not None
    ]
    if not found:
        return None
    fewest, name = min(found)
    return SettledDuels(leader=leader, submission_id=name, duels=fewest)


def _pairs(ballots: RankedVotes, submission_id: str | None) -> list[Pair]:
    standings = ballots.standings()
    found = neighbours(standings)
    if submission_id is not None:
        if all(one.submission_id != submission_id for one in standings):
            raise SubmissionNotFound(submission_id)
        found = [
            pair
            for pair in found
            if submission_id in (pair[0].submission_id, pair[1].submission_id)
        ]
    is_by_thumbs = ballots.rule is RankingRule.THUMBS_UP
    most = PAIRS_BY_THUMBS if is_by_thumbs else PAIRS_BY_STRENGTH
    return [weakest_votes(ballots, *pair) for pair in found[:most]]
