"""Says which submission is known to be within a competition's margin of the best, and what is still open."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from guanaco.competitions import OPEN, Competition, RankingRule
from guanaco.errors import NewerVersionNeeded, SubmissionNotFound
from guanaco.leaderboard import AskedVerdict, LeaderboardVerdict, VerdictPair, VerdictState
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.leaderboard import claims
from guanaco_server.leaderboard.asked import AskedReader
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.field import Field, FieldReader, leader_in_duels, placed
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelVotes
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.ranking.queries import ranked_scores
from guanaco_server.leaderboard.ranking.rules import Standing, margin_of, standings
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.beta_prior import BetaPrior, chance_within, fit_prior
from guanaco_server.statistics.decisions import Comparison, compare
from guanaco_server.statistics.duel_decisions import compare_duels
from guanaco_server.statistics.duel_strengths import (
    duels_between,
    leader_of,
    members_of,
    results_of,
    strengths_of,
)
from guanaco_server.statistics.strength_prior import (
    StrengthPrior,
    chance_within_by_duels,
    fit_strength_prior,
)
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.service import SubmissionService

FRESH = timedelta(seconds=30)  # a board of a thousand takes 0.4 s
MAX_CACHED = 64
FORETOLD = 50  # pairs for which the votes that are still needed are estimated, a millisecond each
PRIOR_FRESH = timedelta(hours=1)


@dataclass(frozen=True)
class _CachedVerdict:
    at: datetime
    found: LeaderboardVerdict


Prior = TypeVar("Prior")


@dataclass(frozen=True)
class _CachedPrior(Generic[Prior]):
    at: datetime
    frozen: set[str]
    prior: Prior

    def is_fresh(self, frozen: set[str], now: datetime) -> bool:
        return self.frozen == frozen and now - self.at < PRIOR_FRESH


class VerdictService:
    """Computes one verdict at a time, and keeps each for some seconds: anybody may ask."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        competitions: CompetitionService,
        submissions: SubmissionService,
        fields: FieldReader,
    ) -> None:
        self._duels = DuelReader(database, submissions)
        self._asked = AskedReader(database, submissions)
        self._fields = fields
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._one_at_a_time = asyncio.Lock()
        self._cached: OrderedDict[str, _CachedVerdict] = OrderedDict()
        self._past_duels = DuelCounts(database)
        self._prior: _CachedPrior[BetaPrior] | None = None
        self._duel_prior: _CachedPrior[StrengthPrior] | None = None

    async def verdict(self, competition_id: str = OPEN) -> LeaderboardVerdict:
        """Return the verdict on a competition's leader, half a minute old at most.

        Raises:
            CompetitionNotFound: There is no such competition.
            NewerVersionNeeded: This version does not know the competition's rule.
        """
        competition = await self._competitions.find(competition_id)
        if competition.ranking.is_unknown:
            raise NewerVersionNeeded(f"a competition that is ranked by {competition.ranking}")
        async with self._one_at_a_time:
            now = self._clock.now()
            known = self._cached.get(competition.id)
            if (
                known is None
                or now - known.at >= FRESH
                or known.found.within != competition.assignment.within
                or known.found.ranking is not competition.ranking
                or known.found.is_by_duels is not competition.is_settled_by_duels
            ):
                found = await self._find(competition, now)
                asked = await self._find_asked(competition, now)
                known = _CachedVerdict(now, found.model_copy(update={"asked": asked}))
                self._cached[competition.id] = known
                self._cached.move_to_end(competition.id)
                if len(self._cached) > MAX_CACHED:
                    self._cached.popitem(last=False)
            return known.found

    async def note_settled(self, competition_id: str) -> bool:
        """Keep a verdict that is settled for the first time; return whether it is."""
        competition = await self._competitions.find(competition_id)
        if competition.ranking.is_unknown:
            return False
        async with self._one_at_a_time:
            found = await self._find(competition, self._clock.now())
            self._cached.pop(competition_id, None)
        if not found.is_decided or found.settled_at is not None:
            return False
        await self._database.write_unit(
            lambda session: claims.keep(session, claims.settled_claims(competition, found))
        )
        return True

    async def between(self, competition_id: str, first: str, second: str) -> LeaderboardVerdict:
        """Return the verdict on two submissions, the one that leads beside the other.

        Raises:
            CompetitionNotFound: There is no such competition.
            SubmissionNotFound: One of them has no score there.
            NewerVersionNeeded: This version does not know the competition's rule.
        """
        competition = await self._competitions.find(competition_id)
        if competition.ranking.is_unknown:
            raise NewerVersionNeeded(f"a competition that is ranked by {competition.ranking}")
        async with self._one_at_a_time:
            return await self._find(competition, self._clock.now(), (first, second))

    async def _find(
        self, competition: Competition, now: datetime, only: tuple[str, str] | None = None
    ) -> LeaderboardVerdict:
        field = await self._fields.read(competition, now)
        async with self._database.read(may_be_stale=True) as session:
            settled = await claims.settled(session, competition)
        found = await self._of_field(competition, field, now, only)
        if only is None:
            found = _with_field(found, field)
        return found if settled is None else found.model_copy(update=settled)

    async def _find_asked(self, competition: Competition, now: datetime) -> AskedVerdict | None:
        if competition.ask is None:
            return None
        field = await self._fields.read(competition, now)
        return await self._asked.verdict(competition, field, now)

    async def _of_field(
        self,
        competition: Competition,
        field: Field,
        now: datetime,
        only: tuple[str, str] | None,
    ) -> LeaderboardVerdict:
        if competition.is_settled_by_duels:
            duels = await self._duels.read(competition)
            strength_prior = await self._prior_of_past_duels(now)
            return await threads.PAGES.run(
                _by_duels, competition, field, duels, strength_prior, now, only
            )
        if competition.ranking is not RankingRule.THUMBS_UP:
            async with self._database.read(may_be_stale=True) as session:
                scores = await ranked_scores(session, competition.id)
            return _by_intervals(competition, _live_first(_only(scores, only), field), now)
        prior = await self._prior_of_past_seasons(now)
        return await threads.PAGES.run(_by_thumbs, competition, field, prior, now, only)

    async def _prior_of_past_seasons(self, now: datetime) -> BetaPrior:
        frozen = {
            one.id for one in await self._competitions.list_all() if one.frozen_at is not None
        }
        known = self._prior
        if known is None or not known.is_fresh(frozen, now):
            past: list[VoteCount] = []
            if frozen:
                async with self._database.read(may_be_stale=True) as session:
                    rows = await queries.vote_counts(session)
                past = [VoteCount(up, down) for one, _, up, down in rows if one in frozen]
            known = _CachedPrior(now, frozen, await threads.PAGES.run(fit_prior, past))
            self._prior = known
        return known.prior

    async def _prior_of_past_duels(self, now: datetime) -> StrengthPrior:
        frozen = {
            one.id
            for one in await self._competitions.list_all()
            if one.frozen_at is not None and one.duels.are_kept
        }
        known = self._duel_prior
        if known is None or not known.is_fresh(frozen, now):
            past = [await self._past_duels.by_pair(one) for one in sorted(frozen)]
            found = await threads.PAGES.run(fit_strength_prior, past)
            known = self._duel_prior = _CachedPrior(now, frozen, found)
        return known.prior


def _by_thumbs(
    competition: Competition,
    field: Field,
    prior: BetaPrior,
    now: datetime,
    only: tuple[str, str] | None,
) -> LeaderboardVerdict:
    counts = field.votes
    board = _live_first(_only(standings(RankingRule.THUMBS_UP, counts, (), ()), only), field)
    if not board:
        return _verdict(competition, None, [], now)
    margin = competition.assignment.within
    names = [one.submission_id for one in board]
    leader, others = names[0], names[1:]
    foretold = FORETOLD
    pairs = []
    for name in others:
        found = compare(
            counts[leader],
            counts[name],
            margin=margin,
            members=field.members,
            foretells=foretold > 0,
        )
        foretold -= not found.is_within
        pairs.append(_pair(name, found))
    verdict = _verdict(competition, leader, pairs, now)
    beside = others if only is not None else field.live - {leader}
    return verdict.model_copy(
        update={
            "chance": chance_within(counts[leader], [counts[one] for one in beside], margin, prior),
            "prior_up": prior.up,
            "prior_down": prior.down,
            "prior_submissions": prior.submissions,
        }
    )


def _live_first(board: Sequence[Standing], field: Field) -> list[Standing]:
    """Put the first live one first: who is withdrawn leads only where nobody else has a score."""
    live = [one for one in board if not field.is_withdrawn(one.submission_id)][:1]
    return live + [one for one in board if one not in live]


def _with_field(found: LeaderboardVerdict, field: Field) -> LeaderboardVerdict:
    """Label who is withdrawn, and add who takes part without a vote, which is open."""
    if found.leader is None:
        return found
    pairs, is_decided = placed(found.leader, found.pairs, field)
    return found.model_copy(
        update={
            "pairs": pairs,
            "is_decided": is_decided,
            "is_leader_withdrawn": field.is_withdrawn(found.leader),
        }
    )


def _by_duels(
    competition: Competition,
    field: Field,
    duels: DuelVotes,
    prior: StrengthPrior,
    now: datetime,
    only: tuple[str, str] | None,
) -> LeaderboardVerdict:
    """Test the duels of each pair with the one that leads in them; a withdrawn one leads only where nobody else has duels."""
    counts, names = duels.by_pair(), sorted(duels.counts())
    shown = names
    if only is not None:
        if missing := set(only) - set(names):
            raise SubmissionNotFound(min(missing))
        shown = sorted(only)
    leader = leader_in_duels(field, shown, counts) if only is None else leader_of(shown, counts)
    if leader is None and only is not None:
        leader = shown[0]
    if leader is None:
        return _verdict(competition, None, [], now)
    strengths = strengths_of(results_of(names, counts))
    others = sorted((one for one in shown if one != leader), key=lambda one: (-strengths[one], one))
    dependence = duels.dependence_by_rival(leader)
    pairs = []
    for place, name in enumerate(others):
        found = compare_duels(
            duels_between(counts, leader, name),
            margin=competition.assignment.within,
            members=members_of(counts),
            dependence=dependence.get(name, 1.0),
            foretells=place < FORETOLD,
        )
        pairs.append(_pair(name, found))
    beside = others if only is not None else field.live - {leader} or others
    chance = chance_within_by_duels(
        leader,
        beside,
        counts,
        competition.assignment.within,
        prior,
        duels.dependence(strengths, leader),
    )
    return _verdict(competition, leader, pairs, now).model_copy(
        update={
            "chance": chance,
            "prior_spread": prior.spread,
            "prior_submissions": prior.submissions,
        }
    )


def _by_intervals(
    competition: Competition, board: Sequence[Standing], now: datetime
) -> LeaderboardVerdict:
    """Compare intervals that hold for all together: strengths have no counts from which to test a pair."""
    if not board:
        return _verdict(competition, None, [], now)
    leader, margin = board[0], margin_of(competition.ranking, competition.assignment.within)
    pairs = []
    for other in board[1:]:
        lead = leader.score.low - other.score.high
        state = (
            VerdictState.BETTER
            if lead > 0
            else VerdictState.WITHIN
            if lead >= -margin
            else VerdictState.OPEN
        )
        pairs.append(VerdictPair(submission_id=other.submission_id, state=state))
    return _verdict(competition, leader.submission_id, pairs, now)


def _only(board: Sequence[Standing], names: tuple[str, str] | None) -> list[Standing]:
    """Leave out all others; SubmissionNotFound for one that is not on the board."""
    if names is None:
        return list(board)
    missing = set(names) - {one.submission_id for one in board}
    if missing:
        raise SubmissionNotFound(min(missing))
    return [one for one in board if one.submission_id in names]


def _verdict(
    competition: Competition, leader: str | None, pairs: list[VerdictPair], now: datetime
) -> LeaderboardVerdict:
    return LeaderboardVerdict(
        at=now,
        competition=competition.id,
        ranking=competition.ranking,
        within=competition.assignment.within,
        leader=leader,
        is_by_duels=competition.is_settled_by_duels,
        is_decided=bool(pairs) and all(pair.state is not VerdictState.OPEN for pair in pairs),
        pairs=pairs,
    )


def _pair(name: str, found: Comparison) -> VerdictPair:
    votes, low, high = found.foretold
    return VerdictPair(
        submission_id=name, state=_state(found), votes=votes, votes_low=low, votes_high=high
    )


def _state(found: Comparison) -> VerdictState:
    if found.is_better:
        return VerdictState.BETTER
    return VerdictState.WITHIN if found.is_within else VerdictState.OPEN
