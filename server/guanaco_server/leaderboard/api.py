"""The leaderboard and seasons for everybody, a submission's metrics for its developer, and flags for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from guanaco.accounts import Role
from guanaco.competitions import OPEN
from guanaco.forms import Slug
from guanaco.leaderboard import (
    Leaderboard,
    LeaderboardSort,
    LeaderboardStability,
    LeaderboardVerdict,
    ScoreHistory,
    Season,
    SeasonCheck,
    SubmissionMetrics,
    UniformRatios,
    VoteFlag,
    VotePattern,
)
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.http.routes import Routes
from guanaco_server.leaderboard.flags.service import FlagService
from guanaco_server.leaderboard.seasons.service import SeasonService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.leaderboard.stability import StabilityService
from guanaco_server.leaderboard.uniform import UniformService
from guanaco_server.leaderboard.verdict import VerdictService

SubmissionId = Annotated[str | None, Query(min_length=1, max_length=128)]
Limit = Annotated[int, Query(ge=1, le=1_000)]


def router(
    leaderboard: LeaderboardService,
    stability: StabilityService,
    verdicts: VerdictService,
    flags: FlagService,
    seasons: SeasonService,
    uniform: UniformService,
    auth: Auth,
) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["leaderboard"])
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.get("/leaderboard", response_model=Leaderboard)
    async def read_leaderboard(
        competition: Slug = OPEN, sort: LeaderboardSort = LeaderboardSort.RANK
    ) -> Response:
        found = await leaderboard.leaderboard(competition, sort)
        return Response(found.model_dump_json(), media_type="application/json")

    @routes.get("/leaderboard/stability")
    async def read_stability(
        competition: Slug = OPEN, submission: SubmissionId = None
    ) -> LeaderboardStability:
        """Return how few votes decide between neighbours on the board, or around one submission."""
        return await stability.pairs(competition, submission)

    @routes.get("/leaderboard/verdict")
    async def read_verdict(competition: Slug = OPEN) -> LeaderboardVerdict:
        """Return which submission is known to be within the competition's margin of the best, and what is still open."""
        return await verdicts.verdict(competition)

    @routes.get("/submissions/{submission_id}/metrics")
    async def read_metrics(
        submission_id: str, competition: Slug | None = None, account: Account = developer
    ) -> SubmissionMetrics:
        return await leaderboard.metrics(account, submission_id, competition)

    @routes.get("/submissions/{submission_id}/score-history")
    async def read_score_history(submission_id: str, competition: Slug = OPEN) -> ScoreHistory:
        return await leaderboard.history(submission_id, competition)

    @routes.get("/votes/flags")
    async def read_flags(
        competition: str | None = None,
        submission: str | None = None,
        duels: bool | None = None,
        limit: Limit = 100,
        account: Account = admin,
    ) -> list[VoteFlag]:
        """Return ratings and duels that rules have left out, newest first. `duels` asks for duels alone, or for ratings alone."""
        if submission is not None:
            submission = await leaderboard.submission_id(account, submission)
        return await flags.newest(competition, submission, limit, duels=duels)

    @routes.get("/votes/patterns")
    async def read_patterns(
        competition: Slug = OPEN, duels: bool = False, account: Account = admin
    ) -> list[VotePattern]:
        """Return whose votes come from another kind of users than the others', the farthest first. `duels` compares the votes on battles instead."""
        return await (flags.duel_patterns if duels else flags.patterns)(competition)

    @routes.post("/votes/{feedback_id}/allow")
    async def allow_vote(feedback_id: str, account: Account = admin) -> list[VoteFlag]:
        """Let a rating count whatever the rules say, or a duel by its battle's id."""
        return await flags.allow(account, feedback_id)

    @routes.get("/competitions/{competition_id}/season")
    async def read_season(competition_id: str) -> Season:
        return await seasons.find(competition_id)

    @routes.get("/competitions/{competition_id}/uniform")
    async def read_uniform(competition_id: str, account: Account = admin) -> UniformRatios:
        """Return what uniform assignment would have shown, from the recorded chance of each assignment."""
        return await uniform.ratios(competition_id)

    @routes.post("/competitions/{competition_id}/freeze")
    async def freeze(competition_id: str, account: Account = admin) -> Season:
        return await seasons.freeze(competition_id, account)

    @routes.post("/competitions/{competition_id}/recompute")
    async def recompute(competition_id: str, account: Account = admin) -> SeasonCheck:
        return await seasons.recompute(competition_id)

    return routes
