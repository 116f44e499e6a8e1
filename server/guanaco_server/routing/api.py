"""The routing decision over HTTP, for a backend that talks to the model itself."""

from __future__ import annotations

from fastapi import APIRouter

from guanaco.accounts import Role
from guanaco.chat import Assignment
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.routing.service import RoutingService


def router(routing: RoutingService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["routing"])
    backend = auth.require(Role.BACKEND)

    @routes.get("/assignment")
    async def assign(account: Account = backend) -> Assignment:
        """The submission that a new conversation should go to now."""
        return Assignment(submission_id=(await routing.assign()).serving.id)

    return routes
