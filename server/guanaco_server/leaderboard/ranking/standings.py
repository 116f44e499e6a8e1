"""Ranks each competition again when its aggregates have changed, and stores the result for everybody to read.

The publisher holds aggregates and votes in memory between two rankings. Counting goes on while a ranking is computed: its
batches wait, and the next ranking begins by taking them over. So a ranking is of one moment's votes. Everything is read
again when another process has counted meanwhile, or after a failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition, DuelRule, RankingRule
from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.bulk import insert_missing, upsert
from guanaco_server.database.database import Database
from guanaco_server.duels import records as duel_records
from guanaco_server.duels.scores import PairResults
from guanaco_server.leaderboard import claims
from guanaco_server.leaderboard.counting import queries as counting_queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate
from guanaco_server.leaderboard.counting.counter import CountedBatch
from guanaco_server.leaderboard.counting.votes import VotingWindow, first_votes, window_of
from guanaco_server.leaderboard.flags.duels import keep_trail
from guanaco_server.leaderboard.ranking import queries
from guanaco_server.leaderboard.ranking.duels.duel_rules import DuelFlag
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelVotes
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.ranking.metrics import MetricValues, metrics_of
from guanaco_server.leaderboard.ranking.rules import Fit, VotesByUser, compares_users, standings
from guanaco_server.leaderboard.ranking.strengths.continued_fit import ContinuedFit
from guanaco_server.leaderboard.ranking.strengths.influence import RankedVotes
from guanaco_server.leaderboard.tables import ScorePointRow, StandingRow
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.confidence_sequences import proportion_sequences
from guanaco_server.submissions.service import SubmissionService

HOUR_S = 3_600
FULL_HISTORY_HOURS = 7 * 24

Rules = tuple[RankingRule, DuelRule, VotingWindow | None, float]
Shown = tuple[int | None, float | None, float | None, float | None, str]
"""A submission's rank, score, the interval's low and high end, and its metrics as JSON."""


@dataclass(frozen=True)
class RankedCompetition:
    competition: str
    shown: dict[str, Shown]
    duels: Mapping[tuple[str, str], PairResults]
    flags: Sequence[DuelFlag]


class StandingsPublisher:
    """``ranked`` and ``unweighed`` are the competitions that were ranked; whoever looks after their verdicts, or finds the votes that decide, takes them out."""

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
        self._duels = DuelReader(database, submissions)
        self._followed: list[CountedBatch] = []
        self._one_at_a_time = asyncio.Lock()
        self._is_stale = False
        self.ranked: set[str] = set()
        self.unweighed: set[str] = set()
        self._forget()

    def reset(self) -> None:
        """Have the next ranking read everything again."""
        self._is_stale = True

    def _forget(self) -> None:
        self._is_stale = False
        self._version = -1
        self._has_aggregates = False
        self._today = 0
        self._hour = 0
        self._aggregates: defaultdict[str, dict[str, Aggregate]] = defaultdict(dict)
        self._votes: dict[str, VotesByUser] = {}
        self._metrics: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._written: defaultdict[str, dict[str, Shown]] = defaultdict(dict)
        self._rules: dict[str, Rules] = {}
        self._duel_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._pairs: dict[str, Mapping[tuple[str, str], PairResults]] = {}
        self._flags: dict[str, Sequence[DuelFlag]] = {}
        self._duels.forget()
        self._fits: dict[str, ContinuedFit] = {}

    def follow(self, batch: CountedBatch) -> None:
        """Keep what a batch has changed for the next ranking."""
        self._followed.append(batch)

    async def publish(self) -> None:
        """Rank the competitions that have changed, and store what differs from what is shown."""
        async with self._one_at_a_time:
            await self._publish()

    async def ballots(self, competition_id: str) -> RankedVotes | None:
        """Return the votes of a competition as they were ranked last; None if they are to be read again first."""
        competition = await self._competitions.find(competition_id)
        async with self._one_at_a_time:
            if self._is_stale or self._rules.get(competition_id) != _rules(competition):
                return None
            duels = await self._duels.votes(competition)
            return await threads.BACKGROUND.run(self._ballots, competition, duels)

    def _ballots(self, competition: Competition, duels: DuelVotes) -> RankedVotes:
        counts = {
            one: first_votes(found) for one, found in self._aggregates[competition.id].items()
        }
        if not compares_users(competition.ranking):
            return RankedVotes(competition.ranking, counts, (), ())
        votes = self._votes.get(competition.id) or VotesByUser(())
        coded = None
        if duels.total:
            places = {user: place for place, user in enumerate(votes.everybody())}
            coded = duels.coded(votes.index_of, places)
        return RankedVotes(competition.ranking, counts, list(votes.ids), votes.everybodys(), coded)

    async def _publish(self) -> None:
        competitions = await self._competitions.list_all()
        await self._ensure_current()
        changed = await self._read(competitions)
        revoted = self._take_over(changed)
        now = self._clock.now()
        today = now.astimezone(UTC).date().toordinal()
        if today != self._today:
            self._today = today
            changed.update((name, set(known)) for name, known in self._aggregates.items())
        for competition in competitions:
            if competition.ranking.is_unknown:  # only a newer process can rank it
                continue
            has_other_rule = self._rules.get(competition.id) != _rules(competition)
            has_new_duels = await self._duels.refresh(competition)
            aggregates = self._aggregates[competition.id]
            unmeasured = aggregates.keys() - self._metrics[competition.id].keys()
            ids = changed.get(competition.id, set()) | unmeasured
            has_votes = bool(aggregates) or competition.duels.are_kept
            if ids or competition.id in revoted or has_new_duels or (has_other_rule and has_votes):
                duels = await self._duels.valid(competition)
                ranked = await threads.BACKGROUND.run(self._rank, competition, ids, today, duels)
                await self._write(ranked, now)
            self._rules[competition.id] = _rules(competition)
        await self._keep_history(now)

    async def _ensure_current(self) -> None:
        """Forget what is in memory if somebody else has counted since, and note what version will be read."""
        self._followed = [one for one in self._followed if one.version > self._version]
        expected = count(self._version + 1)
        if self._is_stale or any(batch.version != next(expected) for batch in self._followed):
            self._forget()
        if (
            self._version < 0
        ):  # a look of its own: all votes that are read later are of this version or newer
            async with self._database.read() as session:
                self._version = await counting_queries.version(session)

    def _take_over(self, changed: defaultdict[str, set[str]]) -> set[str]:
        """Replace the votes and aggregates that batches have changed; return the competitions that the votes are in.

        The memory may be newer than a batch. It is taken over all the same, for those that follow it are too.
        """
        touched: set[str] = set()
        for batch in self._followed:
            if batch.version <= self._version:
                continue
            self._is_stale = self._is_stale or batch.version != self._version + 1
            self._version = batch.version
            for (competition, submission_id), aggregate in batch.aggregates.items():
                self._aggregates[competition][submission_id] = aggregate
                changed[competition].add(submission_id)
            for (competition, user), votes in batch.votes.items():
                if competition in self._votes:
                    self._votes[competition].replace(user, votes)
                    touched.add(competition)
        self._followed.clear()
        return touched

    async def _read(self, competitions: list[Competition]) -> defaultdict[str, set[str]]:
        """Read what is not in memory; return the submissions by competition whose aggregates were read."""
        changed: defaultdict[str, set[str]] = defaultdict(set)
        async with self._database.read() as session:
            if not self._has_aggregates:
                for row in await counting_queries.all_scores(session):
                    aggregate = Aggregate.from_json(row.tally)
                    self._aggregates[row.competition][row.submission_id] = aggregate
                    changed[row.competition].add(row.submission_id)
                self._has_aggregates = True
        for one in competitions:
            if compares_users(one.ranking) and one.id not in self._votes:
                # A fit that was made under another rule knows no votes.
                self._fits.pop(one.id, None)
                self._votes[one.id] = await self._database.read_unit(partial(_votes_in, one.id))
        return changed

    def _rank(
        self, competition: Competition, changed: set[str], today: int, duels: DuelVotes
    ) -> RankedCompetition:
        """Compute the ranking. With a million votes it takes seconds, so it runs in a thread."""
        pairs, flags = duels.results_by_pair(), duels.flags
        if not competition.duels.counted:
            duels = NO_DUELS
        aggregates, metrics = self._aggregates[competition.id], self._metrics[competition.id]
        before, duelled = self._duel_counts[competition.id], duels.counts()
        for one in changed | {name for name, _ in before.items() ^ duelled.items()}:
            found = metrics_of(one, aggregates.get(one, Aggregate()), today)
            metrics[one] = found.model_copy(update={"duels": duelled[one]}).model_dump_json()
        self._duel_counts[competition.id] = duelled
        counts = {one: first_votes(found) for one, found in aggregates.items()}
        votes = self._votes.get(competition.id) or VotesByUser(())
        shown: dict[str, Shown] = {
            one: (None, None, None, None, text) for one, text in metrics.items()
        }
        fit: Fit = (
            duels.fit(votes, votes.comparing())
            if duels.total
            else self._fits.setdefault(competition.id, ContinuedFit(votes))
        )
        for standing in standings(
            competition.ranking,
            counts,
            votes.ids,
            votes.comparable(),
            fit=fit,
            sequences=proportion_sequences,
        ):
            score, one = standing.score, standing.submission_id
            if one in metrics:
                shown[one] = (standing.rank, score.value, score.low, score.high, metrics[one])
        return RankedCompetition(competition.id, shown, pairs, flags)

    async def _write(self, ranked: RankedCompetition, now: datetime) -> None:
        known = self._written[ranked.competition]
        moved = _rank_changes(ranked, known, now)
        rows = [
            _columns(ranked.competition, submission_id, shown, now)
            for submission_id, shown in ranked.shown.items()
            if known.get(submission_id) != shown
        ]

        async def write(session: AsyncSession) -> None:
            await upsert(session, StandingRow, rows)
            if self._pairs.get(ranked.competition) != ranked.duels:
                await duel_records.replace_pairs(session, ranked.competition, ranked.duels)
            if self._flags.get(ranked.competition) != ranked.flags:
                await keep_trail(session, ranked.competition, ranked.flags, now)
            await claims.keep(session, moved)

        await self._database.write_unit(write)
        self._flags[ranked.competition] = ranked.flags
        self._pairs[ranked.competition] = ranked.duels
        known.update(ranked.shown)
        self.ranked.add(ranked.competition)
        self.unweighed.add(ranked.competition)

    async def _keep_history(self, now: datetime) -> None:
        """Store a point of every score and its metrics at the first ranking of an hour."""
        hour = int(now.timestamp() // HOUR_S)
        if hour == self._hour:
            return
        rows = [
            _point(competition, submission_id, shown, hour, now)
            for competition, known in self._written.items()
            for submission_id, shown in known.items()
        ]
        if not rows:
            return

        async def keep(session: AsyncSession) -> None:
            await insert_missing(session, ScorePointRow, rows)
            await queries.thin_points(session, hour - FULL_HISTORY_HOURS)

        await self._database.write_unit(keep)
        self._hour = hour


async def _votes_in(competition: str, session: AsyncSession) -> VotesByUser:
    return VotesByUser(await counting_queries.votes_in(session, competition))


def _rank_changes(
    ranked: RankedCompetition, known: Mapping[str, Shown], now: datetime
) -> list[claims.BoardClaim]:
    """Return the claims of those whose rank is another than before; a first rank is none."""
    found = []
    for submission_id, (rank, *_) in ranked.shown.items():
        was = known[submission_id][0] if submission_id in known else None
        if rank is not None and was is not None and rank != was:
            found.append(claims.rank_claim(ranked.competition, submission_id, rank, was, now))
    return found


def _columns(competition: str, submission_id: str, shown: Shown, now: datetime) -> dict[str, Any]:
    rank, score, low, high, metrics = shown
    return {
        "competition": competition,
        "submission_id": submission_id,
        "rank": rank,
        "score": score,
        "low": low,
        "high": high,
        "metrics": metrics,
        "at": now,
    }


def _rules(competition: Competition) -> Rules:
    """Return what a ranking and its verdict depend on beside the votes. A window that changes has votes counted again, but not duels."""
    window = window_of(competition) if competition.duels.are_kept else None
    return competition.ranking, competition.duels, window, competition.assignment.within


def _point(
    competition: str, submission_id: str, shown: Shown, hour: int, now: datetime
) -> Mapping[str, object]:
    columns = _columns(competition, submission_id, shown, now)
    metrics = SubmissionMetrics.model_validate_json(columns.pop("metrics"))
    return columns | {"hour": hour, "figures": MetricValues.of(metrics).to_json()}
