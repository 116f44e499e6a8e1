"""Shows what a developer may use and has used, with the form by which an admin sets it for one of them."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError

from guanaco.accounts import Role
from guanaco.quotas import Quota, QuotaOverride
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.field_problems import field_problems
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

GIGABYTE = 10**9
LABELS = {
    "per_hour": "Submissions and redeploys within an hour",
    "live": "Live, or on their way",
    "in_progress": "In the queue and the pipeline",
    "artifact_bytes": "Weights",
}


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer, admin = web.guards.member(Role.DEVELOPER), web.guards.member(Role.ADMIN)
    sender = web.guards.member(Role.ADMIN, keeps_form=True)

    @routes.get("/quota")
    async def show_own(request: Request, member: Member = developer) -> Response:
        quota = await web.quotas.quota_of(member.account)
        return web.pages.show(request, "quota.html", quota=quota, labels=LABELS)

    @routes.get("/admin/accounts/{name}")
    async def show_account(request: Request, name: str, member: Member = admin) -> Response:
        quota = await web.quotas.quota_named(name)
        fields = _fields(await web.quotas.override_of(name))
        return _show(web, request, quota, fields, {}, 200)

    @routes.post("/admin/accounts/{name}")
    async def set_quota(request: Request, name: str, member: Member = sender) -> Response:
        if member.is_given_back:
            quota = await web.quotas.quota_named(name)
            return _show(web, request, quota, member.fields, {}, 200)
        try:
            override = _override(member.fields)
        except ValidationError as error:
            quota = await web.quotas.quota_named(name)
            return _show(web, request, quota, member.fields, field_problems(error), 422)
        quota = await web.quotas.set(name, override, member.account)
        return see_other(f"/admin/accounts/{quota.account}")


def _show(
    web: WebRoom,
    request: Request,
    quota: Quota,
    fields: dict[str, str],
    problems: dict[str, str],
    status: int,
) -> Response:
    return web.pages.show(
        request,
        "admin/account.html",
        status=status,
        quota=quota,
        labels=LABELS,
        fields=fields,
        problems=problems,
    )


def _fields(override: QuotaOverride) -> dict[str, str]:
    given = override.model_dump(exclude_none=True)
    return {name: f"{_in_display_unit(name, value):g}" for name, value in given.items()}


def _in_display_unit(name: str, value: int) -> float:
    return value / GIGABYTE if name == "artifact_bytes" else value


def _override(fields: dict[str, str]) -> QuotaOverride:
    """Read the form; empty fields are the platform's own limits. ValidationError names the field."""
    given: dict[str, object] = {}
    for name in QuotaOverride.model_fields:
        if text := fields.get(name, "").strip():
            given[name] = _bytes(text) if name == "artifact_bytes" else text
    return QuotaOverride.model_validate(given)


def _bytes(gigabytes: str) -> object:
    """Return the text where it is no number, for pydantic to refuse."""
    try:
        return round(float(gigabytes) * GIGABYTE)
    except (ValueError, OverflowError):
        return gigabytes
