"""How many ratings each submission has."""

from __future__ import annotations

from collections.abc import Collection

from guanaco_server.database.database import Database
from guanaco_server.feedback import records
from guanaco_server.leaderboard import queries


class RatingCounts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def kept(self) -> dict[str, int]:
        """Of all submissions, as the scorekeeper has counted them: seconds old, and cheap to read every few seconds."""
        async with self._database.read() as session:
            return {one: count for one, count in await queries.rating_counts(session)}

    async def exact(self, submission_ids: Collection[str]) -> dict[str, int]:
        """Of some submissions, counted now."""
        async with self._database.read() as session:
            return await records.counts(session, submission_ids)
