"""A submission's recipe over HTTP: its developer may read it, an admin may set it."""

from __future__ import annotations

from fastapi import APIRouter

from guanaco.accounts import Role
from guanaco.recipes import RecipeOverride, RecipeStatus
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.submissions.service import SubmissionService


def router(submissions: SubmissionService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/api/v1/submissions", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.get("/{submission_id}/recipe")
    async def read_recipe(submission_id: str, account: Account = developer) -> RecipeStatus:
        submission = await submissions.require_visible(account, submission_id)
        return await submissions.recipes.status(submission.id)

    @routes.put("/{submission_id}/recipe")
    async def set_recipe(
        submission_id: str, override: RecipeOverride, account: Account = admin
    ) -> RecipeStatus:
        submission = await submissions.require_visible(account, submission_id)
        return await submissions.recipes.set(submission, override)

    return routes
