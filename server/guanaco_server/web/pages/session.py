"""Signing in with an API key, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import Unauthenticated
from guanaco_server.accounts.service import Account
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.access.throttle import Throttle
from guanaco_server.web.access.viewer import Viewer
from guanaco_server.web.forms import kept_of
from guanaco_server.web.page_route import show_sign_in
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

WRONG_KEYS, WITHIN_S = 10, 300.0  # of one address

Next = Annotated[str, Query(max_length=500)]


def add_routes(routes: Routes, web: WebRoom) -> None:
    wrong_keys = Throttle(WRONG_KEYS, WITHIN_S)

    @routes.get("/signin")
    async def show_form(
        request: Request, next: Next = "", viewer: Viewer = web.guards.public()
    ) -> Response:
        if viewer.account is not None:
            return see_other(_place(next, viewer.account))
        return show_sign_in(web.pages, request, next)

    @routes.post("/signin")
    async def sign_in(
        request: Request, fields: dict[str, str] = web.guards.stranger_form()
    ) -> Response:
        address = request.client.host if request.client else ""
        wrong_keys.require_room(address)
        wanted, kept = fields.get("next", ""), kept_of(fields)
        try:
            new = await web.sessions.begin(fields.get("key", "").strip())
        except Unauthenticated:
            wrong_keys.note(address)
            problem = "That key is wrong, or was revoked."
            return show_sign_in(web.pages, request, wanted, status=401, problem=problem, kept=kept)
        place = _place(wanted, new.account)
        if kept and place == wanted:
            request.state.viewer = Viewer(new.account, new.cookie)
            answer: Response = web.pages.show(request, "resume.html", action=place, kept=kept)
        else:
            answer = see_other(place)
        web.guards.keep_session(answer, request, new)
        return answer

    @routes.post("/signout")
    async def sign_out(request: Request, member: Member = web.guards.member(*Role)) -> Response:
        await web.sessions.end(request.state.viewer.cookie)
        answer = see_other("/")
        web.guards.drop_session(answer)
        return answer


def _place(wanted: str, account: Account) -> str:
    r"""Return the path if it is a page of ours: neither another host (``//host``, ``/\host``) nor the sign-in itself."""
    is_ours = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    if is_ours and wanted != "/" and not wanted.startswith("/signin"):
        return wanted
    places = {Role.ADMIN: "/admin", Role.DEVELOPER: "/submissions"}
    return places.get(account.role, "/")
