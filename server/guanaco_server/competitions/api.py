"""Competitions over HTTP: everybody may read them, an admin makes them."""

from __future__ import annotations

from guanaco.accounts import Role
from guanaco.competitions import Competition, CompetitionRequest
from guanaco.forms import Slug
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.http.routes import Routes


def router(competitions: CompetitionService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/competitions", tags=["competitions"])
    admin = auth.require(Role.ADMIN)

    @routes.get("")
    async def list_competitions() -> list[Competition]:
        return await competitions.list_all()

    @routes.get("/{competition_id}")
    async def read_competition(competition_id: str) -> Competition:
        return await competitions.find(competition_id)

    @routes.put("/{competition_id}")
    async def put_competition(
        competition_id: Slug, request: CompetitionRequest, account: Account = admin
    ) -> Competition:
        request = await competitions.with_ids(account, request)
        return await competitions.put(competition_id, request, account)

    return routes
