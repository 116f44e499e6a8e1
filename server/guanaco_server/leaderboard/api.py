"""The leaderboard, which everybody may see, and a submission's metrics, which its developer may."""

from __future__ import annotations

from fastapi import APIRouter

from guanaco.accounts import Role
from guanaco.leaderboard import Leaderboard, SubmissionMetrics
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.leaderboard.service import LeaderboardService


def router(leaderboard: LeaderboardService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["leaderboard"])
    developer = auth.require(Role.DEVELOPER)

    @routes.get("/leaderboard")
    async def read_leaderboard() -> Leaderboard:
        return await leaderboard.leaderboard()

    @routes.get("/submissions/{submission_id}/metrics")
    async def read_metrics(submission_id: str, account: Account = developer) -> SubmissionMetrics:
        return await leaderboard.metrics(account, submission_id)

    return routes
