"""Ranks every competition anew when its tallies have changed, and keeps the result for everybody to read.

Tallies and votes are held in memory between two rankings, brought up to date by what each batch has changed. When
another process has counted meanwhile, or anything went wrong, they are read anew.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from guanaco.competitions import Competition, RankingRule
from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.leaderboard import queries, ranking, standing_queries
from guanaco_server.leaderboard.ballots import BallotBox
from guanaco_server.leaderboard.books import Settled
from guanaco_server.leaderboard.figures import Figures
from guanaco_server.leaderboard.metrics import metrics_of
from guanaco_server.leaderboard.ranking import Count, Standing
from guanaco_server.leaderboard.tables import ScorePointRow, StandingRow
from guanaco_server.leaderboard.tally import Tally
from guanaco_server.runtime.clock import Clock

HOUR_S = 3_600
FULL_HISTORY_HOURS = 7 * 24

Shown = tuple[int | None, float | None, float | None, float | None, str]


@dataclass(frozen=True)
class Ranked:
    """A competition's standings and metrics, as they are shown by submission."""

    competition: str
    shown: dict[str, Shown]
    standings: list[Standing]


class StandingsKeeper:
    def __init__(self, database: Database, clock: Clock, competitions: CompetitionService) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self.reset()

    def reset(self) -> None:
        """Forget what is held, and read it anew."""
        self._version = self._read_at = -1
        self._today = 0
        self._hour = 0
        self._tallies: defaultdict[str, dict[str, Tally]] = defaultdict(dict)
        self._boxes: dict[str, BallotBox] = {}
        self._metrics: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._written: defaultdict[str, dict[str, Shown]] = defaultdict(dict)
        self._rules: dict[str, RankingRule] = {}

    def follow(self, settled: Settled) -> None:
        """Take over what a batch has changed."""
        if self._version >= 0 and settled.version != self._version + 1:
            self.reset()
        if self._version >= 0:
            self._version = settled.version
            for (competition, user), votes in settled.ballots.items():
                if competition in self._boxes:
                    self._boxes[competition].put(user, votes)

    async def publish(self) -> None:
        """Rank the competitions that have changed, and store what differs from what is shown."""
        competitions = await self._competitions.list_all()
        changed = await self._read(competitions)
        now = self._clock.now()
        today = now.astimezone(UTC).date().toordinal()
        if today != self._today:
            self._today = today
            changed = {name: set(known) for name, known in self._tallies.items()}
        for competition in competitions:
            if competition.ranking.is_unknown:  # only a newer process can rank it
                continue
            has_other_rule = self._rules.get(competition.id) is not competition.ranking
            tallies = self._tallies[competition.id]
            unmeasured = tallies.keys() - self._metrics[competition.id].keys()
            ids = changed.get(competition.id, set()) | unmeasured
            if ids or (has_other_rule and tallies):
                ranked = await asyncio.to_thread(self._rank, competition, ids, today)
                await self._write(ranked, now)
            self._rules[competition.id] = competition.ranking
        await self._keep_history(now)

    async def _read(self, competitions: list[Competition]) -> dict[str, set[str]]:
        """The submissions whose tallies have changed since the last time, by competition."""
        changed: defaultdict[str, set[str]] = defaultdict(set)
        async with self._database.read() as session:
            if self._version < 0:
                self._version = await queries.version(session)
            for row in await queries.scores_since(session, self._read_at):
                self._tallies[row.competition][row.submission_id] = Tally.from_json(row.tally)
                changed[row.competition].add(row.submission_id)
                self._read_at = max(self._read_at, row.version)
            for one in competitions:
                if ranking.needs_ballots(one.ranking) and one.id not in self._boxes:
                    self._boxes[one.id] = BallotBox(await queries.ballots(session, one.id))
        return changed

    def _rank(self, competition: Competition, changed: set[str], today: int) -> Ranked:
        """Pure computation, in a thread of its own: some seconds with a million votes."""
        tallies, metrics = self._tallies[competition.id], self._metrics[competition.id]
        for one in changed:
            metrics[one] = metrics_of(one, tallies[one], today).model_dump_json()
        votes = {one: Count(tally["up"], tally["down"]) for one, tally in tallies.items()}
        box = self._boxes.get(competition.id)
        found = ranking.standings(
            competition.ranking, votes, box.ids if box else (), box.ballots() if box else ()
        )
        shown: dict[str, Shown] = {one: (None, None, None, None, metrics[one]) for one in tallies}
        for standing in found:
            score, one = standing.score, standing.submission_id
            if one in metrics:
                shown[one] = (standing.rank, score.value, score.low, score.high, metrics[one])
        return Ranked(competition.id, shown, found)

    async def _write(self, ranked: Ranked, now: datetime) -> None:
        known = self._written[ranked.competition]
        rows = [
            _columns(ranked.competition, submission_id, shown, now)
            for submission_id, shown in ranked.shown.items()
            if known.get(submission_id) != shown
        ]
        async with self._database.write() as session:
            await queries.put(session, StandingRow, rows)
        known.update(ranked.shown)

    async def _keep_history(self, now: datetime) -> None:
        """A point of every score and its metrics at the first ranking of an hour."""
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
        async with self._database.write() as session:
            await queries.add(session, ScorePointRow, rows)
            await standing_queries.thin_points(session, hour - FULL_HISTORY_HOURS)
        self._hour = hour


def _columns(competition: str, submission_id: str, shown: Shown, now: datetime) -> queries.Row:
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


def _point(
    competition: str, submission_id: str, shown: Shown, hour: int, now: datetime
) -> Mapping[str, object]:
    columns = _columns(competition, submission_id, shown, now)
    metrics = SubmissionMetrics.model_validate_json(columns.pop("metrics"))
    return columns | {"hour": hour, "figures": Figures.of(metrics).to_json()}
