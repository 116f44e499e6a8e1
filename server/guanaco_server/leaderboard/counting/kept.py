"""Keeps aggregates in memory from one batch to the next, so that a batch does not read and parse what the last one wrote.

Batches are numbered, and one is counted at a time, in whichever process. What is kept is used only by the batch that follows the one it is
of; after any other it is read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate, Key

Board = dict[str, Aggregate]  # a submission's aggregates by competition


class KeptAggregates:
    def __init__(self) -> None:
        self._version = -1
        self._boards: dict[str, Board] = {}

    async def of(
        self, session: AsyncSession, version: int, submission_ids: Iterable[str]
    ) -> dict[Key, Aggregate]:
        """Return all aggregates of some submissions, for batch ``version`` in its transaction, which holds the lock on counting."""
        ids = set(submission_ids)
        kept = self._boards if version == self._version + 1 else {}
        found = {one: kept[one] for one in ids & kept.keys()}
        found |= await _read(session, ids - kept.keys())
        return {
            (competition, one): aggregate
            for one, board in found.items()
            for competition, aggregate in board.items()
        }

    def keep(self, version: int, aggregates: Mapping[Key, Aggregate]) -> None:
        """Keep the aggregates of batch ``version``, which is committed: all of each submission that it has touched."""
        if version != self._version + 1:
            self._boards = {}
        self._version = version
        self._boards |= _by_submission(aggregates)


async def _read(session: AsyncSession, submission_ids: set[str]) -> dict[str, Board]:
    found: dict[str, Board] = {one: {} for one in submission_ids}
    if submission_ids:
        for row in await queries.scores(session, submission_ids):
            found[row.submission_id][row.competition] = Aggregate.from_json(row.tally)
    return found


def _by_submission(aggregates: Mapping[Key, Aggregate]) -> dict[str, Board]:
    found: defaultdict[str, Board] = defaultdict(dict)
    for (competition, one), aggregate in aggregates.items():
        found[one][competition] = aggregate
    return dict(found)
