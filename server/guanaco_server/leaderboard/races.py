"""Reads the running competitions as races: who takes part, with which votes, and the margin that is asked for."""

from __future__ import annotations

from guanaco.submissions import Status
from guanaco_server.competitions.entry import admitted
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.leaderboard.counting import queries
from guanaco_server.scaling.worth import Race
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.service import SubmissionService

NO_VOTES = VoteCount(0, 0)


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
        serving = await self._submissions.list_serving()
        taking = [one for one in serving if one.status is Status.DEPLOYED and one.is_understood]
        async with self._database.read() as session:
            rows = await queries.vote_counts(session)
        votes = {(competition, name): VoteCount(up, down) for competition, name, up, down in rows}
        running = await self._competitions.list_running()
        duels = {
            one.id: await self._duels.by_pair(one.id) for one in running if one.is_settled_by_duels
        }
        return [
            Race(
                competition.assignment.within,
                {
                    one.id: votes.get((competition.id, one.id), NO_VOTES)
                    for one in admitted(competition, taking)
                    if competition.assignment.weights.get(one.id, 1.0) > 0
                },
                duels.get(competition.id),
            )
            for competition in running
        ]
