"""Shows the operator what GPUs cost: a calendar month by developer and by submission."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import InvalidInput
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.room import WebRoom

MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
Month = Annotated[str, Query(max_length=7)]


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)

    @routes.get("/admin/costs")
    async def show_costs(request: Request, month: Month = "", member: Member = admin) -> Response:
        now = web.clock.now().astimezone(UTC)
        first = _first_of(month) if month else _month(now.year, now.month)
        if first > now:
            raise InvalidInput("That month has not begun.", hint="Choose this month or one before.")
        until = _shifted(first, 1)
        return web.pages.show(
            request,
            "admin/costs.html",
            found=await web.costs.costs(first, until),
            month=first,
            before=_shifted(first, -1),
            after=until if until <= now else None,
        )


def _first_of(text: str) -> datetime:
    found = MONTH.fullmatch(text)
    if found is None or not 1 < int(found[1]) < 9_999:
        raise InvalidInput("A month is written like 2026-11.")
    return _month(int(found[1]), int(found[2]))


def _month(year: int, month: int) -> datetime:
    return datetime(year, month, 1, tzinfo=UTC)


def _shifted(first: datetime, months: int) -> datetime:
    number = first.year * 12 + first.month - 1 + months
    return _month(number // 12, number % 12 + 1)
