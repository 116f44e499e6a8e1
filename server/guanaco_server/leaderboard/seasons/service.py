"""Freezes competitions and keeps their final rankings.

    freeze: end the competition (one transaction) ─▶ rank the ratings from before that moment ─▶ store the bytes

Freezing waits for ratings that are being recorded, and later ones have a later time: so the same ratings are found
whenever they are ranked again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco.errors import NewerVersionNeeded, SeasonNotFound
from guanaco.leaderboard import Season, SeasonCheck
from guanaco_server.accounts.audit import Actor
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelVotes
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.ranking.strengths.influence import RankedVotes
from guanaco_server.leaderboard.seasons import queries
from guanaco_server.leaderboard.seasons.document import (
    FOR_ONE_LOOK,
    SCHEMA,
    SCHEMAS,
    WITH_WITHDRAWN,
    AllowedFlags,
    ballots_of,
    final_ranking,
    read_entries,
    schema_of,
    takes_duels,
)
from guanaco_server.leaderboard.tables import SeasonRow
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService


class SeasonService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._competitions = competitions

    async def freeze(self, competition_id: str, by: Actor) -> Season:
        """Freeze a competition and return its season. Freezing it again changes nothing."""
        _require_known_rule(await self._competitions.find(competition_id))
        competition = await self._competitions.freeze(competition_id, by)
        frozen_at = competition.frozen_at
        assert frozen_at is not None
        async with self._database.read() as session:
            known = await queries.season(session, competition_id)
        if known is None:
            content = await self._rank(competition, frozen_at, SCHEMA)
            sha256 = hashlib.sha256(content).hexdigest()
            known = await self._database.write_unit(
                lambda session: queries.keep_season(
                    session, competition_id, frozen_at, content, sha256
                )
            )
        return _read(known)

    async def find(self, competition_id: str) -> Season:
        """Return a season; SeasonNotFound when the competition is not frozen."""
        await self._competitions.find(competition_id)
        async with self._database.read() as session:
            row = await queries.season(session, competition_id)
        if row is None:
            raise SeasonNotFound(competition_id)
        return _read(row)

    async def recompute(self, competition_id: str) -> SeasonCheck:
        """Rank again from what is recorded, and compare. This changes nothing.

        Raises:
            NewerVersionNeeded: A newer version has frozen the season, by a schema that this version does not know.
        """
        season = await self.find(competition_id)
        competition = await self._competitions.find(competition_id)
        stored = season.ranking.encode()
        schema = _known_schema(stored)
        _require_known_rule(competition)
        content = await self._rank(competition, season.frozen_at, schema)
        sha256 = hashlib.sha256(content).hexdigest()
        is_same = content == stored and sha256 == season.sha256
        return SeasonCheck(
            competition=competition_id,
            sha256=season.sha256,
            recomputed_sha256=sha256,
            is_same=is_same,
            reasons=[] if is_same else await self._reasons(competition, season.frozen_at),
        )

    async def _reasons(self, competition: Competition, frozen_at: datetime) -> list[str]:
        """Return what may have taken ratings away since the freeze, which is no fault."""
        async with self._database.read() as session:
            erasures = await records.count_erasures(session, frozen_at)
        found = []
        if erasures:
            were = (
                "erasure of a user or deletion of a conversation"
                if erasures == 1
                else "erasures of users and deletions of conversations"
            )
            found.append(
                f"{erasures:,} {were} came after the freeze on this platform; they take ratings away even from a frozen competition."
            )
        days = competition.retention_days
        if days is not None and self._clock.now() - competition.starts_at > timedelta(days=days):
            found.append(
                f"The competition keeps conversations for {days} days, and their ratings are removed with them."
            )
        return found

    async def unweighed(self) -> list[str]:
        """Return the frozen competitions of which nobody has found yet how few votes decide between neighbours."""
        async with self._database.read() as session:
            return await queries.unweighed(session)

    async def ballots(self, competition_id: str) -> RankedVotes | None:
        """Return the votes behind a season's ranking; None if its intervals were for one look, or if what is recorded gives another order now, as after erasures.

        Raises:
            NewerVersionNeeded: A newer version has frozen the season, by a rule or a schema that this version does not know.
        """
        season = await self.find(competition_id)
        competition = await self._competitions.find(competition_id)
        document = season.ranking.encode()
        schema = _known_schema(document)
        _require_known_rule(competition)
        if schema == FOR_ONE_LOOK:
            return None
        recorded = await self._recorded(competition, season.frozen_at, schema)
        return await threads.BACKGROUND.run(
            _same_ballots, document, competition, *recorded, schema=schema
        )

    async def _rank(self, competition: Competition, frozen_at: datetime, schema: int) -> bytes:
        ratings, owners, allowed, duels = await self._recorded(competition, frozen_at, schema)
        return await threads.BACKGROUND.run(
            final_ranking, competition, ratings, owners, allowed, schema, duels
        )

    async def _recorded(
        self, competition: Competition, frozen_at: datetime, schema: int
    ) -> tuple[list[RecordedRating], dict[str, Owner], AllowedFlags, DuelVotes]:
        """Read what a ranking by this schema is computed from."""
        owners = {
            brief.id: Owner(brief.account_id, brief.developer)
            for brief in await self._submissions.catalog.briefs()
        }

        async def read(session: AsyncSession) -> tuple[list[RecordedRating], AllowedFlags]:
            ratings = await records.of_competition(session, competition.id)
            if schema in WITH_WITHDRAWN:
                ratings += await records.withdrawn_in(session, competition.id)
            return ratings, await flag_queries.allowed(session, competition.id, frozen_at)

        ratings, allowed = await self._database.read_unit(read)
        duels = NO_DUELS
        if takes_duels(competition, schema):
            reader = DuelReader(self._database, self._submissions)
            duels = await reader.valid(competition, schema=schema)
        return ratings, owners, allowed, duels


def _known_schema(document: bytes) -> int:
    if (schema := schema_of(document)) not in SCHEMAS:
        raise NewerVersionNeeded(f"a season whose document has schema {schema}")
    return schema


def _require_known_rule(competition: Competition) -> None:
    if competition.ranking.is_unknown:
        raise NewerVersionNeeded(f"a competition that is ranked by {competition.ranking}")


def _read(row: SeasonRow) -> Season:
    return Season(
        competition=row.competition,
        frozen_at=row.frozen_at,
        sha256=row.sha256,
        ranking=row.ranking.decode(),
    )


def _same_ballots(
    document: bytes,
    competition: Competition,
    ratings: list[RecordedRating],
    owners: dict[str, Owner],
    allowed: AllowedFlags,
    duels: DuelVotes,
    *,
    schema: int,
) -> RankedVotes | None:
    """Return the votes, unless they rank in another order than the document."""
    ballots = ballots_of(competition, ratings, owners, allowed, schema, duels)
    ranked = {one.submission_id: one.rank for one in ballots.standings()}
    final = {one: entry.rank for one, entry in read_entries(document).items()}
    return ballots if list(ranked.items()) == list(final.items()) else None
