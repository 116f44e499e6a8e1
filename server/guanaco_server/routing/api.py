"""The routing decision over HTTP, for a backend that talks to the model itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import Query

from guanaco.accounts import Role
from guanaco.chat import Assignment
from guanaco.competitions import OPEN
from guanaco.forms import Slug
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.http.routes import Routes
from guanaco_server.routing.service import RoutingService

FindSeen = Callable[[Account, str, str], Awaitable[Sequence[str]]]
UserId = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=128,
        description="Gives one that this user has had no conversation with, while there are others.",
    ),
]


def router(
    routing: RoutingService, competitions: CompetitionService, find_seen: FindSeen, auth: Auth
) -> Routes:
    """``find_seen`` gives what a user of the account has had in a competition, least recently had first."""
    routes = Routes(prefix="/api/v1", tags=["routing"])
    backend = auth.require(Role.BACKEND)

    @routes.get("/assignment", responses={409: {}})
    async def assign(
        competition: Slug = OPEN, user_id: UserId = None, account: Account = backend
    ) -> Assignment:
        """The submission that a new conversation should go to now."""
        running = await competitions.require_running(competition)
        seen = await find_seen(account, competition, user_id) if user_id else ()
        assigned = await routing.assign(running, seen)
        return Assignment(submission_id=assigned.submission_id)

    return routes
