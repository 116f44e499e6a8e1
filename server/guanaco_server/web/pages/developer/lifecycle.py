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
    NotFound,
    NothingToRollBack,
    RedeployInProgress,
)
from guanaco.submissions import RedeployRequest, Submission
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.field_problems import field_problems
from guanaco_server.web.pages.developer.submitting import hub_token_of
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom
from guanaco_server.web.views.lifecycle import SubmissionAction, find_action

CANARY_PERCENT, CANARY_MINUTES = "5", "60"


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)
    sender = web.guards.member(Role.DEVELOPER, keeps_form=True)
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
        return _question(web, request, submission, wanted, {}, {})

    @routes.post("/submissions/{submission_id}/{action}")
    async def do(
        request: Request, submission_id: str, action: str, member: Member = sender
    ) -> Response:
        wanted = _require(action)
        if member.is_given_back:
            submission = await web.submissions.require_visible(member.account, submission_id)
            return _question(web, request, submission, wanted, member.fields, {})
        if wanted.name in ("redeploy", "canary"):
            token = hub_token_of(member.fields)
            try:
                how = _canary(member.fields) if wanted.name == "canary" else RedeployRequest()
            except ValidationError as error:
                submission = await web.submissions.require_visible(member.account, submission_id)
                problems = _canary_problems(error)
                return _question(web, request, submission, wanted, member.fields, problems)
            await web.submissions.redeploy(member.account, submission_id, token, how)
        else:
            await moves[wanted.name](member.account, submission_id)
        return see_other(f"/submissions/{submission_id}")


def _question(
    web: WebRoom,
    request: Request,
    submission: Submission,
    action: SubmissionAction,
    fields: Mapping[str, str],
    problems: Mapping[str, str],
) -> Response:
    return web.pages.show(
        request,
        "confirm.html",
        status=422 if problems else 200,
        submission=submission,
        action=action,
        percent=fields.get("percent", CANARY_PERCENT),
        minutes=fields.get("minutes", CANARY_MINUTES),
        problems=problems,
    )


def _canary(fields: Mapping[str, str]) -> RedeployRequest:
    """Read the form; ValidationError where a field is no number or out of its range."""
    percent, minutes = (_number(fields.get(name, "")) for name in ("percent", "minutes"))
    return RedeployRequest.model_validate(
        {
            "canary": percent / 100 if isinstance(percent, float) else percent,
            "canary_s": minutes * 60 if isinstance(minutes, float) else minutes,
        }
    )


def _canary_problems(error: ValidationError) -> dict[str, str]:
    wrong = field_problems(error)
    sentences = {
        "percent": "It must be over 0 and under 100 %; 5 % is usual.",
        "minutes": "It must be from 1 minute to 30 days (43,200 minutes); 60 is usual.",
    }
    at = {"percent": "canary" in wrong, "minutes": "canary_s" in wrong}
    return {name: text for name, text in sentences.items() if at[name]} or {"percent": wrong[""]}


def _number(text: str) -> float | str:
    """Return the text where it is no number, for pydantic to refuse."""
    try:
        return float(text)
    except ValueError:
        return text


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
