"""Reads the leaderboard as it was ranked last, a submission's metrics, and its score's history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from guanaco.competitions import OPEN, Competition
from guanaco.errors import SubmissionNotFound
from guanaco.estimates import Estimate
from guanaco.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    LeaderboardSort,
    ScoreHistory,
    ScorePoint,
    StabilityPair,
    SubmissionMetrics,
)
from guanaco.submissions import Status
from guanaco_server.accounts.service import Account
from guanaco_server.competitions.entry import admitted, ended_at
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import queries as counting_queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate, sum_of
from guanaco_server.leaderboard.counting.readers import PastVotes
from guanaco_server.leaderboard.ranking import queries
from guanaco_server.leaderboard.ranking.metrics import metrics_of
from guanaco_server.leaderboard.ranking.standings import Shown
from guanaco_server.leaderboard.seasons.document import NO_VOTES, SeasonEntry, read_entries
from guanaco_server.leaderboard.seasons.queries import season
from guanaco_server.leaderboard.stability import PairReader
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.catalog import SubmissionBrief
from guanaco_server.submissions.service import SubmissionService

SHOWN = frozenset({Status.DEPLOYED, Status.INACTIVE, Status.TORN_DOWN})

Position = tuple[float, ...]


class LeaderboardService:
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
        self._past = PastVotes(database, clock, competitions)
        self._pairs = PairReader()
        self._parsed: dict[tuple[str, str], tuple[str, SubmissionMetrics]] = {}
        self._built: dict[
            tuple[str, str],
            tuple[SubmissionBrief, Shown | None, StabilityPair | None, LeaderboardRow],
        ] = {}

    async def leaderboard(
        self, competition_id: str = OPEN, sort: LeaderboardSort = LeaderboardSort.RANK
    ) -> Leaderboard:
        """Return a row for each submission that takes part or is rated. Submissions without votes have no rank and come last."""
        competition = await self._competitions.find(competition_id)
        async with self._database.read(may_be_stale=True) as session:
            found = await queries.of_competition(session, competition_id)
            frozen = await season(session, competition_id)
            kept = await self._pairs.read(session, competition)
        shown: dict[str, Shown] = {
            submission_id: (rank, score, low, high, metrics)
            for submission_id, rank, score, low, high, metrics in found
        }
        final = read_entries(frozen.ranking) if frozen else None
        pairs = {one.lower: one.pair for one in kept[1]} if kept else {}
        metrics = {one: self._metrics_of(competition_id, one, shown) for one in shown}
        rated = {one for one, found in metrics.items() if found.feedback_count or found.duels}
        rows = [
            self._row_of(
                competition_id,
                brief,
                shown.get(brief.id),
                pairs.get(brief.id),
                metrics.get(brief.id),
            )
            if final is None
            else _final_row(
                brief,
                final.get(brief.id, NO_VOTES),
                pairs.get(brief.id),
                metrics.get(brief.id),
            )
            for brief in _listed(
                competition,
                self._clock.now(),
                await self._submissions.catalog.briefs(may_be_stale=True),
                rated,
                final,
            )
        ]
        rows.sort(key=lambda row: (POSITIONS[sort](row), -row.created_at.timestamp()))
        return Leaderboard(
            at=self._clock.now(),
            competition=competition.id,
            ranking=competition.ranking,
            counts_duels=competition.duels.counted,
            controls_style=competition.duels.style_control,
            rows=rows,
        )

    def _metrics_of(
        self, competition_id: str, submission_id: str, shown: dict[str, Shown]
    ) -> SubmissionMetrics:
        """Parse a text once as long as it stays the same, which saves half of a leaderboard's time."""
        text, key = shown[submission_id][4], (competition_id, submission_id)
        known = self._parsed.get(key)
        if known is None or known[0] != text:
            known = self._parsed[key] = (text, SubmissionMetrics.model_validate_json(text))
        return known[1]

    def _row_of(
        self,
        competition_id: str,
        brief: SubmissionBrief,
        shown: Shown | None,
        pair: StabilityPair | None,
        metrics: SubmissionMetrics | None,
    ) -> LeaderboardRow:
        """Build a row once as long as what it shows stays the same, which saves half of what is left."""
        key = (competition_id, brief.id)
        known = self._built.get(key)
        if known is None or known[:3] != (brief, shown, pair):
            row = _row(brief, shown, pair, metrics or _empty_metrics(brief))
            known = self._built[key] = (brief, shown, pair, row)
        return known[3]

    async def metrics(
        self, account: Account, submission_id: str, competition_id: str | None = None
    ) -> SubmissionMetrics:
        """Return the metrics in one competition, or in all together: then a user has one vote in each."""
        await self._submissions.ensure_visible(account, submission_id)
        async with self._database.read(may_be_stale=True) as session:
            found = await queries.aggregates(session, submission_id, competition_id)
        today = self._clock.now().astimezone(UTC).date().toordinal()
        return metrics_of(submission_id, sum_of(map(Aggregate.from_json, found)), today)

    async def submission_id(self, account: Account, named: str) -> str:
        """Return the id of a submission that may be named by its alias."""
        return await self._submissions.aliases.resolve(account, named)

    async def history(self, submission_id: str, competition_id: str = OPEN) -> ScoreHistory:
        """Return the score's history, without points for a submission that has no score in that competition. SubmissionNotFound for one that is not shown."""
        await self._competitions.find(competition_id)
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.points(session, submission_id, competition_id)
            points = [
                ScorePoint(at=row.at, rank=row.rank, score=row.score, low=row.low, high=row.high)
                for row in rows
                if row.score is not None and row.low is not None and row.high is not None
            ]
            now = await queries.of_submission(session, submission_id, competition_id)
        if now is not None and now.score is not None:
            assert now.low is not None, "a score has an interval"
            assert now.high is not None, "a score has an interval"
            point = ScorePoint(
                at=now.at, rank=now.rank, score=now.score, low=now.low, high=now.high
            )
            if not points or points[-1].at < point.at:
                points.append(point)
        if not points:
            await self._require_shown(submission_id)
        return ScoreHistory(submission_id=submission_id, competition=competition_id, points=points)

    async def _require_shown(self, submission_id: str) -> None:
        """SubmissionNotFound for one that is not shown to the public."""
        briefs = await self._submissions.catalog.briefs(may_be_stale=True)
        if not any(one.id == submission_id and one.status in SHOWN for one in briefs):
            raise SubmissionNotFound(submission_id)

    async def votes_between(
        self, since: datetime | None, until: datetime | None
    ) -> dict[str, VoteCount]:
        """Return the open competition's votes that were given from ``since`` until before ``until``."""
        return await self._past.between(since, until)

    async def votes_by_competition(self) -> dict[str, dict[str, VoteCount]]:
        """Return the votes by competition and submission, from one read of a small table."""
        async with self._database.read() as session:
            rows = await counting_queries.vote_counts(session)
        found: dict[str, dict[str, VoteCount]] = {}
        for competition, submission_id, up, down in rows:
            found.setdefault(competition, {})[submission_id] = VoteCount(up, down)
        return found


def _listed(
    competition: Competition,
    now: datetime,
    briefs: Sequence[SubmissionBrief],
    rated: Collection[str],
    final: Mapping[str, SeasonEntry] | None,
) -> list[SubmissionBrief]:
    """Return the published submissions that are admitted or rated, and all that are in a frozen competition's season.

    A submission that was torn down takes no place from an older one of its developer that still runs. One that came after the end takes none at all.
    """
    end = ended_at(competition, now)
    published = [
        one for one in briefs if one.status in SHOWN and (end is None or one.created_at < end)
    ]
    running = [one for one in published if one.status is Status.DEPLOYED]
    entrants = {one.id for group in (published, running) for one in admitted(competition, group)}
    listed = entrants | {one.id for one in published if one.id in rated}
    listed.update(final or ())
    return [one for one in briefs if one.id in listed]


def _final_row(
    brief: SubmissionBrief,
    final: SeasonEntry,
    pair: StabilityPair | None,
    metrics: SubmissionMetrics | None,
) -> LeaderboardRow:
    shown = (final.rank, final.score, final.low, final.high, "")
    return _row(brief, shown, pair, final.with_votes(metrics or _empty_metrics(brief)))


def _empty_metrics(brief: SubmissionBrief) -> SubmissionMetrics:
    return metrics_of(brief.id, Aggregate(), 0)


def _row(
    brief: SubmissionBrief,
    shown: Shown | None,
    pair: StabilityPair | None,
    metrics: SubmissionMetrics,
) -> LeaderboardRow:
    """Build a row without validation, since its data is our own: a thousand rows take a tenth of the time."""
    rank, score, low, high = shown[:4] if shown else (None, None, None, None)
    return LeaderboardRow.model_construct(
        **metrics.__dict__,
        rank=rank,
        score=score,
        score_low=low,
        score_high=high,
        neighbour=pair,
        developer=brief.developer,
        name=brief.name,
        repo=brief.repo,
        status=brief.status,
        created_at=brief.created_at,
        parameter_count=brief.parameter_count,
        license=brief.license,
        architecture=brief.architecture,
        sweep=brief.sweep,
    )


def _by_rank(row: LeaderboardRow) -> Position:
    if row.rank is None or row.score_low is None:
        return (float("inf"),)
    return (row.rank, -row.score_low)


def _highest(
    read: Callable[[LeaderboardRow], Estimate | None],
) -> Callable[[LeaderboardRow], Position]:
    """Sort by the interval's lower end; rows without one come last."""

    def position(row: LeaderboardRow) -> Position:
        found = read(row)
        if found is None:
            return (2.0,)
        return (1.0, -found.value) if found.low is None else (0.0, -found.low)

    return position


def _lowest(
    read: Callable[[LeaderboardRow], Estimate | None],
) -> Callable[[LeaderboardRow], Position]:
    """Sort by the interval's upper end; rows without one come last."""

    def position(row: LeaderboardRow) -> Position:
        found = read(row)
        if found is None:
            return (2.0,)
        return (1.0, found.value) if found.high is None else (0.0, found.high)

    return position


def _by_thumbs_up(row: LeaderboardRow) -> Position:
    return (float("inf"),) if row.interval_low is None else (-row.interval_low,)


POSITIONS: dict[LeaderboardSort, Callable[[LeaderboardRow], Position]] = {
    LeaderboardSort.RANK: _by_rank,
    LeaderboardSort.THUMBS_UP: _by_thumbs_up,
    LeaderboardSort.CONVERSATION_LENGTH: _highest(lambda row: row.conversation_length),
    LeaderboardSort.RETENTION: _highest(lambda row: row.retention),
    LeaderboardSort.REPETITION: _lowest(lambda row: row.repetition),
    LeaderboardSort.REGENERATE_RATE: _lowest(lambda row: row.regenerate_rate),
    LeaderboardSort.TTFT: _lowest(lambda row: row.ttft_ms_median),
    LeaderboardSort.REPLY_TIME: _lowest(lambda row: row.reply_ms_median),
    LeaderboardSort.FEEDBACK: lambda row: (-row.feedback_count,),
    LeaderboardSort.NEWEST: lambda row: (-row.created_at.timestamp(),),
}
