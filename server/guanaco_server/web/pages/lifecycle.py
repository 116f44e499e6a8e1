"""Cancel, deactivate, reactivate, redeploy, tear down: asked on a page of its own, done by its form."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import IllegalTransition, NotFound
from guanaco_server.web.guards import Member
from guanaco_server.web.lifecycle_view import SubmissionAction, find_action
from guanaco_server.web.pages.submitting import hub_token_of
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom


def add_routes(routes: APIRouter, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)
    moves = {
        "cancel": web.submissions.cancel,
        "deactivate": web.submissions.deactivate,
        "reactivate": web.submissions.reactivate,
        "teardown": web.submissions.teardown,
    }

    @routes.get("/submissions/{submission_id}/{action}")
    async def ask(
        request: Request, submission_id: str, action: str, member: Member = developer
    ) -> Response:
        wanted = _require(action)
        submission = await web.submissions.require_visible(member.account, submission_id)
        if not wanted.is_possible(submission.status):
            raise IllegalTransition(submission_id, submission.status, wanted.to)
        return web.pages.show(request, "confirm.html", submission=submission, action=wanted)

    @routes.post("/submissions/{submission_id}/{action}")
    async def do(submission_id: str, action: str, member: Member = developer) -> Response:
        wanted = _require(action)
        if wanted.name == "redeploy":
            token = hub_token_of(member.fields)
            await web.submissions.redeploy(member.account, submission_id, token)
        else:
            await moves[wanted.name](member.account, submission_id)
        return see_other(f"/submissions/{submission_id}")


def _require(name: str) -> SubmissionAction:
    action = find_action(name)
    if action is None:
        raise NotFound("There is no such page.")
    return action
