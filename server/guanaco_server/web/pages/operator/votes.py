"""Ratings that rules have left out of the scores, for the operator, who may let one count."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import FlagNotFound
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.pages.leaderboard import SearchText
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

FLAGS = 200


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)

    @routes.get("/admin/votes")
    async def list_flags(
        request: Request,
        competition: SearchText = "",
        submission: SearchText = "",
        member: Member = admin,
    ) -> Response:
        submission = submission.strip()
        named = await web.submissions.aliases.resolve(member.account, submission)
        return web.pages.show(
            request,
            "admin/votes.html",
            flags=await web.flags.newest(competition or None, named or None, FLAGS),
            competitions=await web.competitions.list_all(),
            competition=competition,
            submission=submission,
            most=FLAGS,
        )

    @routes.get("/admin/votes/{feedback_id}/allow")
    async def ask(request: Request, feedback_id: str, member: Member = admin) -> Response:
        flags = await web.flags.of_rating(feedback_id)
        if not flags:
            raise FlagNotFound(feedback_id)
        return web.pages.show(request, "admin/allow_vote.html", flags=flags, flag=flags[0])

    @routes.post("/admin/votes/{feedback_id}/allow")
    async def allow(feedback_id: str, member: Member = admin) -> Response:
        await web.flags.allow(member.account, feedback_id)
        return see_other("/admin/votes")
