"""Reads the running competitions as races: who takes part, with which votes, and the margin that is asked for."""

from __future__ import annotations

from collections import defaultdict

from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.field import running_field
from guanaco_server.scaling.worth import Race
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.service import SubmissionService


class RaceReader:
    def __init__(
        self, database: Database, submissions: SubmissionService, competitions: CompetitionService
    ) -> None:
        self._database = database
        self._duels = DuelCounts(database)
        self._submissions = submissions
        self._competitions = competitions

    async def read(self) -> list[Race]:
        """Read who takes conversations of each running competition, with their thumbs, or with their duels where these settle who is best."""
        serving = await self._submissions.catalog.list_serving()
        async with self._database.read() as session:
            rows = await queries.vote_counts(session)
        votes: defaultdict[str, dict[str, VoteCount]] = defaultdict(dict)
        for competition_id, name, up, down in rows:
            votes[competition_id][name] = VoteCount(up, down)
        races = []
        for competition in await self._competitions.list_running():
            duels = None
            if competition.is_settled_by_duels:
                duels = await self._duels.by_pair(competition.id)
            field = running_field(competition, serving, votes[competition.id])
            live = {name: field.votes[name] for name in sorted(field.live)}
            races.append(Race(competition.assignment.within, live, duels, field.members))
        return races
