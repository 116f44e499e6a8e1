"""The audit trail of ratings that rules leave out, and an admin's decision against a rule."""

from __future__ import annotations

from guanaco.errors import FlagNotFound
from guanaco.leaderboard import VoteFlag
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import queries as counting_queries
from guanaco_server.leaderboard.flags import queries
from guanaco_server.leaderboard.tables import VoteFlagRow
from guanaco_server.runtime.clock import Clock


class FlagService:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def newest(
        self, competition: str | None, submission_id: str | None, limit: int
    ) -> list[VoteFlag]:
        """Return the newest first."""
        async with self._database.read() as session:
            rows = await queries.newest(session, competition, submission_id, limit)
            return [_read(row) for row in rows]

    async def of_rating(self, feedback_id: str) -> list[VoteFlag]:
        """Return the flags of one rating; none if no rule has left it out."""
        async with self._database.read() as session:
            return [_read(row) for row in await queries.of_ratings(session, [feedback_id])]

    async def allow(self, account: Account, feedback_id: str) -> list[VoteFlag]:
        """Let the rating count whatever the rules say, and return its flags. Allowing twice changes nothing."""
        async with self._database.write() as session:
            await queries.allow(session, feedback_id, self._clock.now(), account.name)
            rows = await queries.of_ratings(session, [feedback_id])
            if not rows:
                raise FlagNotFound(feedback_id)
            await counting_queries.ask_recounts(session, {row.submission_id for row in rows})
            return [_read(row) for row in rows]


def _read(row: VoteFlagRow) -> VoteFlag:
    return VoteFlag(**{name: getattr(row, name) for name in VoteFlag.model_fields})
