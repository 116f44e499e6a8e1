"""Cancel, deactivate, reactivate, redeploy, canary, roll back, tear down: asked on a page of its own, done by its form."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError

from guanaco.accounts import Role
from guanaco.errors import (
    GuanacoError,
    IllegalTransition,
    InvalidInput,
    NotFound,
    NothingToRollBack,
    RedeployInProgress,
)
from guanaco.submissions import RedeployRequest, Submission
from guanaco_server.http.routes import Routes
from guanaco_server.web.guards import Member
from guanaco_server.web.lifecycle_view import SubmissionAction, find_action
from guanaco_server.web.pages.submitting import hub_token_of
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

CANARY_PERCENT, CANARY_MINUTES = "5", "60"


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)
    moves = {
        "cancel": web.submissions.cancel,
        "deactivate": web.submissions.deactivate,
        "reactivate": web.submissions.reactivate,
        "rollback": web.submissions.rollouts.rollback,
        "teardown": web.submissions.teardown,
    }

    @routes.get("/submissions/{submission_id}/{action}")
    async def ask(
        request: Request, submission_id: str, action: str, member: Member = developer
    ) -> Response:
        wanted = _require(action)
        submission = await web.submissions.require_visible(member.account, submission_id)
        if not wanted.is_possible(submission):
            raise _impossible(wanted, submission)
        return web.pages.show(
            request,
            "confirm.html",
            submission=submission,
            action=wanted,
            percent=CANARY_PERCENT,
            minutes=CANARY_MINUTES,
        )

    @routes.post("/submissions/{submission_id}/{action}")
    async def do(submission_id: str, action: str, member: Member = developer) -> Response:
        wanted = _require(action)
        if wanted.name in ("redeploy", "canary"):
            token = hub_token_of(member.fields)
            how = _canary(member.fields) if wanted.name == "canary" else RedeployRequest()
            await web.submissions.redeploy(member.account, submission_id, token, how)
        else:
            await moves[wanted.name](member.account, submission_id)
        return see_other(f"/submissions/{submission_id}")


def _canary(fields: Mapping[str, str]) -> RedeployRequest:
    try:
        return RedeployRequest(
            canary=float(fields.get("percent", "")) / 100,
            canary_s=float(fields.get("minutes", "")) * 60,
        )
    except (ValueError, ValidationError):
        raise InvalidInput(
            "A canary takes a share over 0 and under 100 %, for a minute to 30 days.",
            hint="5 % for 60 minutes is usual.",
        ) from None


def _impossible(wanted: SubmissionAction, submission: Submission) -> GuanacoError:
    rollout = submission.rollout
    if wanted.name == "rollback":
        return NothingToRollBack(submission.id)
    if wanted.name in ("redeploy", "canary") and rollout and rollout.phase.is_in_progress:
        return RedeployInProgress(submission.id)
    return IllegalTransition(submission.id, submission.status, wanted.to)


def _require(name: str) -> SubmissionAction:
    action = find_action(name)
    if action is None:
        raise NotFound("There is no such page.")
    return action
