"""API keys, for the operator: a new one is shown once, in the answer to its form and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError

from guanaco.accounts import CreatedKey, KeyRequest, Role
from guanaco.errors import GuanacoError, LastAdminKey
from guanaco_server.http.errors import status_of
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.field_problems import field_problems
from guanaco_server.web.pages.leaderboard import PageNumber
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

ROWS = 100


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)
    sender = web.guards.member(Role.ADMIN, keeps_form=True)

    @routes.get("/admin/keys")
    async def list_keys(request: Request, page: PageNumber = 1, member: Member = admin) -> Response:
        return await _show(web, request, page=page)

    @routes.post("/admin/keys")
    async def create_key(request: Request, member: Member = sender) -> Response:
        fields = {name: member.fields.get(name, "").strip() for name in ("role", "name")}
        if member.is_given_back:
            return await _show(web, request, fields=fields)
        try:
            wanted = KeyRequest.model_validate(fields)
            created = await web.accounts.create_key(wanted, member.account)
        except ValidationError as error:
            return await _show(
                web, request, status=422, fields=fields, problems=field_problems(error)
            )
        except GuanacoError as error:
            problems = {"": error.detail}
            return await _show(
                web, request, status=status_of(error), fields=fields, problems=problems
            )
        answer = await _show(web, request, created=created)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @routes.get("/admin/keys/{key_id}/revoke")
    async def ask(request: Request, key_id: str, member: Member = admin) -> Response:
        await web.accounts.require_key(key_id)
        return web.pages.show(request, "admin/revoke.html", key_id=key_id)

    @routes.post("/admin/keys/{key_id}/revoke")
    async def revoke_key(request: Request, key_id: str, member: Member = admin) -> Response:
        try:
            await web.accounts.revoke_key(key_id, member.account)
        except LastAdminKey as error:
            return await _show(web, request, status=status_of(error), problems={"": error.detail})
        return see_other("/admin/keys")


async def _show(
    web: WebRoom,
    request: Request,
    page: int = 1,
    status: int = 200,
    created: CreatedKey | None = None,
    fields: Mapping[str, str] = MappingProxyType({}),
    problems: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    keys = (await web.accounts.list_keys())[::-1]
    return web.pages.show(
        request,
        "admin/keys.html",
        status=status,
        keys=keys[(page - 1) * ROWS : page * ROWS],
        page=page,
        pages=max(1, -(-len(keys) // ROWS)),
        total=len(keys),
        roles=list(Role),
        created=created,
        fields=fields,
        problems=problems,
    )
