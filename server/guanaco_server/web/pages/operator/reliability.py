"""Shows the operator the service level, and which alerts fire."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco_server.alerts.advice import ADVICE
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.room import WebRoom


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)

    @routes.get("/admin/reliability")
    async def show_reliability(request: Request, member: Member = admin) -> Response:
        return web.pages.show(
            request,
            "admin/reliability.html",
            level=await web.alerts.service_level(),
            found=await web.alerts.read(),
            advice=ADVICE,
        )
