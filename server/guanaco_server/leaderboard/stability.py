"""Says for each pair of neighbours on a board how few votes decide it (ranking/strengths/influence.py).

The process that ranks finds the pairs after a ranking, and once for each frozen board, and stores them for everybody to read.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

from pydantic import BaseModel, TypeAdapter
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from guanaco.competitions import OPEN, Competition
from guanaco.errors import NewerVersionNeeded, SubmissionNotFound
from guanaco.leaderboard import LeaderboardStability, SettledDuels, StabilityPair
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.bulk import upsert
from guanaco_server.database.database import Database
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.leaderboard.field import Field, FieldReader, leader_in_duels
from guanaco_server.leaderboard.ranking import queries
from guanaco_server.leaderboard.ranking.strengths.influence import BoardPairs, Pair, RankedVotes
from guanaco_server.leaderboard.seasons import queries as season_queries
from guanaco_server.leaderboard.seasons.document import read_entries
from guanaco_server.leaderboard.tables import BoardPairsRow, SeasonRow
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.duel_decisions import fewest_duels, needed_evidence
from guanaco_server.statistics.duel_strengths import PairCounts, duels_between, members_of

AT_ONCE = 20  # pairs, a tenth of a second or two with a million votes: rankings wait for no more
REST = 9  # as long between these as they took: with a million votes they take ten seconds of the interpreter, which counting needs


class KeptPair(BaseModel):
    """A pair, and the submission whose place is lower on the board."""

    lower: str
    pair: StabilityPair


_KEPT = TypeAdapter(list[KeptPair])


class PairReader:
    """Reads the pairs of boards, and parses them once as long as they stay the same."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[datetime, list[KeptPair]]] = {}

    async def read(
        self, session: AsyncSession, competition: Competition
    ) -> tuple[datetime, list[KeptPair]] | None:
        """Return of when the pairs of a board are, and them, in the board's order; None if they were not found by its present rule."""
        at_column, pairs, is_of = _kept_at(competition)
        at = await session.scalar(select(at_column).where(is_of))
        if at is None:
            return None
        known = self._parsed.get(competition.id)
        if known is None or known[0] != at:
            text = await session.scalar(select(pairs).where(is_of))
            known = self._parsed[competition.id] = (at, _KEPT.validate_json(text or "[]"))
        return known


class StabilityService:
    """Finds the pairs in one process, and reads them in any."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        competitions: CompetitionService,
        fields: FieldReader,
    ) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._fields = fields
        self._duels = DuelCounts(database)
        self._pairs = PairReader()

    async def note(self, competition_id: str, ballots: RankedVotes) -> float:
        """Find the pairs of a board, and store them; return how many seconds that took, without its rests.

        Counting and rankings go on meanwhile: it takes its turns between them, and rests.
        """
        now = self._clock.now()
        pairs, computed_s = await _find(ballots)
        row = {
            "competition": competition_id,
            "ranking": ballots.rule,
            "pairs": pairs,
            "at": now,
        }
        await self._database.write_unit(lambda session: upsert(session, BoardPairsRow, [row]))
        return computed_s

    async def note_season(self, competition_id: str, ballots: RankedVotes | None) -> float:
        """Do the same for a frozen board, once and for all; None notes that nothing can be said of it."""
        pairs, computed_s = ("[]", 0.0) if ballots is None else await _find(ballots)
        await self._database.write_unit(
            lambda session: season_queries.keep_pairs(session, competition_id, pairs)
        )
        return computed_s

    async def pairs(
        self, competition_id: str = OPEN, submission_id: str | None = None
    ) -> LeaderboardStability:
        """Return the pairs of the board, or those that a submission is in, as they were found last.

        Raises:
            SubmissionNotFound: The submission has no rank in that competition.
            NewerVersionNeeded: This version does not know the competition's rule.
        """
        competition = await self._competitions.find(competition_id)
        if competition.ranking.is_unknown:
            raise NewerVersionNeeded(f"a competition that is ranked by {competition.ranking}")
        async with self._database.read(may_be_stale=True) as session:
            if submission_id is not None:
                await _require_rank(session, competition, submission_id)
            at, kept = await self._pairs.read(session, competition) or (self._clock.now(), [])
        pairs = [one.pair for one in kept]
        if submission_id is not None:
            pairs = [pair for pair in pairs if submission_id in (pair.above, pair.below)]
        return LeaderboardStability(
            at=at,
            competition=competition.id,
            ranking=competition.ranking,
            pairs=pairs,
            duels=await self._settled(competition),
        )

    async def _settled(self, competition: Competition) -> SettledDuels | None:
        if not competition.is_settled_by_duels:
            return None
        counts = await self._duels.by_pair(competition.id)
        field = await self._fields.read(competition, self._clock.now())
        return await threads.PAGES.run(_settled, counts, competition.assignment.within, field)


def _kept_at(
    competition: Competition,
) -> tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[Any], ColumnElement[bool]]:
    """Return the columns that say of when the pairs are, and them, with the condition for their row."""
    if competition.frozen_at is None:
        row = BoardPairsRow
        is_of = (row.competition == competition.id) & (row.ranking == competition.ranking)
        return row.at, row.pairs, is_of
    season = SeasonRow
    is_of = (season.competition == competition.id) & season.pairs.is_not(None)
    return season.frozen_at, season.pairs, is_of


async def _require_rank(
    session: AsyncSession, competition: Competition, submission_id: str
) -> None:
    """SubmissionNotFound for one without a rank on the competition's board."""
    if competition.frozen_at is None:
        shown = await queries.of_submission(session, submission_id, competition.id)
        is_ranked = shown is not None and shown.rank is not None
    else:
        season = await season_queries.season(session, competition.id)
        is_ranked = season is not None and submission_id in read_entries(season.ranking)
    if not is_ranked:
        raise SubmissionNotFound(submission_id)


async def _find(ballots: RankedVotes) -> tuple[str, float]:
    """Return the pairs as they are kept, and how many seconds of computing they took."""
    board = await threads.BACKGROUND.run(BoardPairs, ballots)
    kept: list[KeptPair] = []
    computed_s = 0.0
    for start in range(0, len(board.neighbours), AT_ONCE):
        found, took_s = await threads.BACKGROUND.run(_weakest, board, start)
        kept += found
        computed_s += took_s
        if len(kept) < len(board.neighbours):
            await asyncio.sleep(REST * took_s)
    return _KEPT.dump_json(kept).decode(), computed_s


def _weakest(board: BoardPairs, start: int) -> tuple[list[KeptPair], float]:
    """Find the weakest votes of some pairs, and return how many seconds that took."""
    began = time.monotonic()
    found = [
        KeptPair(lower=lower.submission_id, pair=_shown(board.weakest(upper, lower)))
        for upper, lower in board.neighbours[start : start + AT_ONCE]
    ]
    return found, time.monotonic() - began


def _shown(pair: Pair) -> StabilityPair:
    return StabilityPair(**vars(pair))


def _settled(counts: PairCounts, within: float, field: Field) -> SettledDuels | None:
    """Find the pair of the leader that the fewest duels decide, of those that are settled and that hold up the verdict."""
    names = sorted({name for sides in counts for name in sides})
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
