"""Competitions, for the operator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError

from guanaco.accounts import Role
from guanaco.competitions import (
    ENDS_TOO_EARLY,
    OPEN,
    AssignmentKind,
    Competition,
    CompetitionRequest,
    RankingRule,
)
from guanaco.errors import NotFound
from guanaco.forms import Slug
from guanaco.open_enum import OpenEnum
from guanaco_server.competitions.service import OPEN_ALWAYS_RUNS, always_runs, require_begun
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.field_problems import field_problems
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

_SLUG = TypeAdapter(Slug)
EMPTY = {
    "id": "",
    "name": "",
    "starts_at": "",
    "ends_at": "",
    "ranking": RankingRule.THUMBS_UP.value,
    "assignment": AssignmentKind.NEWEST.value,
    "max_parameters": "",
    "per_developer": "",
    "submitted_within": "",
}


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)
    sender = web.guards.member(Role.ADMIN, keeps_form=True)

    @routes.get("/admin/competitions")
    async def list_competitions(request: Request, member: Member = admin) -> Response:
        found = await web.competitions.list_all()
        return web.pages.show(request, "admin/competitions.html", competitions=found)

    @routes.get("/admin/new-competition")
    async def show_new(request: Request, member: Member = admin) -> Response:
        return _form(web, request, EMPTY, None, {})

    @routes.get("/admin/competitions/{competition_id}")
    async def show_one(request: Request, competition_id: str, member: Member = admin) -> Response:
        found = await web.competitions.find(competition_id)
        return _form(web, request, _fields(found), found, {})

    @routes.post("/admin/competitions")
    async def create(request: Request, member: Member = sender) -> Response:
        fields = EMPTY | member.fields
        if member.is_given_back:
            return _form(web, request, fields, None, {})
        try:
            competition_id = _SLUG.validate_python(fields["id"].strip())
        except ValidationError as error:
            (sentence,) = field_problems(error).values()
            return _form(web, request, fields, None, {"id": sentence})
        if competition_id in {found.id for found in await web.competitions.list_all()}:
            problems = {"id": "There is a competition with this id already; open it to change it."}
            return _form(web, request, fields, None, problems)
        return await put(request, member, competition_id, fields, None)

    @routes.post("/admin/competitions/{competition_id}")
    async def change(request: Request, competition_id: str, member: Member = sender) -> Response:
        existing = await web.competitions.find(competition_id)
        fields = EMPTY | member.fields | {"id": competition_id}
        if member.is_given_back:
            return _form(web, request, fields, existing, {})
        return await put(request, member, competition_id, fields, existing)

    async def put(
        request: Request,
        member: Member,
        competition_id: str,
        fields: dict[str, str],
        existing: Competition | None,
    ) -> Response:
        try:
            wanted = CompetitionRequest.model_validate(_request(fields, existing))
        except ValidationError as error:
            problems = field_problems(error)
            if problems.get("") == ENDS_TOO_EARLY:
                problems = {"ends_at": "It must be later than the beginning."}
            return _form(web, request, fields, existing, problems)
        if competition_id == OPEN and not always_runs(wanted, web.clock.now()):
            return _form(web, request, fields, existing, {"ends_at": OPEN_ALWAYS_RUNS})
        await web.competitions.put(competition_id, wanted, member.account)
        return see_other("/admin/competitions")

    @routes.get("/admin/competitions/{competition_id}/freeze")
    async def ask(request: Request, competition_id: str, member: Member = admin) -> Response:
        found = await web.competitions.find(competition_id)
        if found.id == OPEN or found.frozen_at is not None:
            raise NotFound("There is no such page.")
        require_begun(found, web.clock.now())
        return web.pages.show(request, "admin/freeze.html", competition=found)

    @routes.post("/admin/competitions/{competition_id}/freeze")
    async def freeze(competition_id: str, member: Member = admin) -> Response:
        await web.seasons.freeze(competition_id, member.account)
        return see_other("/admin/competitions")


def _form(
    web: WebRoom,
    request: Request,
    fields: dict[str, str],
    competition: Competition | None,
    problems: dict[str, str],
) -> Response:
    return web.pages.show(
        request,
        "admin/competition.html",
        status=422 if problems else 200,
        fields=fields,
        competition=competition,
        has_begun=competition is not None and competition.starts_at <= web.clock.now(),
        problems=problems,
        rankings=_choices(RankingRule, fields["ranking"]),
        assignments=_choices(AssignmentKind, fields["assignment"]),
    )


def _choices(known: type[OpenEnum], chosen: str) -> list[str]:
    """Return the known words, and the chosen one where only a newer version knows it: saving must not change it unseen."""
    return list(dict.fromkeys([*known, chosen]))


def _fields(competition: Competition) -> dict[str, str]:
    entry = competition.entry
    return {
        "id": competition.id,
        "name": competition.name,
        "starts_at": _local(competition.starts_at),
        "ends_at": _local(competition.ends_at),
        "ranking": competition.ranking.value,
        "assignment": competition.assignment.kind.value,
        "max_parameters": str(entry.max_parameters or ""),
        "per_developer": str(entry.per_developer or ""),
        "submitted_within": "yes" if entry.submitted_within else "",
    }


def _request(fields: dict[str, str], existing: Competition | None) -> dict[str, Any]:
    """Build a competition's request from the form; rules that the form does not show stay as they are."""
    before = existing.model_dump(exclude={"id", "frozen_at"}) if existing else {}
    return before | {
        "name": fields["name"].strip(),
        "starts_at": _utc(fields["starts_at"], existing.starts_at if existing else None),
        "ends_at": _utc(fields["ends_at"], existing.ends_at if existing else None) or None,
        "ranking": _unless_changed(fields["ranking"], existing.ranking if existing else None),
        "assignment": before.get("assignment", {})
        | {
            "kind": _unless_changed(
                fields["assignment"], existing.assignment.kind if existing else None
            )
        },
        "entry": {
            "max_parameters": fields["max_parameters"].strip() or None,
            "per_developer": fields["per_developer"].strip() or None,
            "submitted_within": fields["submitted_within"] == "yes",
        },
    }


def _unless_changed(text: str, before: OpenEnum | None) -> str:
    """Return the member itself where the form leaves it: it may be one that only a newer version knows."""
    return before if before is not None and before == text else text


def _local(at: datetime | None) -> str:
    """Write a time as a browser's date and time field has it, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" if at else ""


def _utc(text: str, before: datetime | None) -> datetime | str:
    """``before`` where the form names the same second, for it cannot name what is smaller."""
    text = text.strip()
    written = f"{text}Z" if text and not text.endswith("Z") else text
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        return written
    return before if before is not None and before.replace(microsecond=0) == at else written
