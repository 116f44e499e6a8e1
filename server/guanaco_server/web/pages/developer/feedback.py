"""The feedback viewer: ratings on one side, the chosen one's conversation on the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import InvalidInput
from guanaco.feedback import ExportFormat, Order
from guanaco.forms import FIRST_YEAR, LAST_YEAR
from guanaco_server.feedback.api import file_answer
from guanaco_server.feedback.exports.export import formats
from guanaco_server.feedback.service import MOST_COUNTED
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.rendering import SECURITY_HEADERS
from guanaco_server.web.room import WebRoom
from guanaco_server.web.views.ratings import RatingFilter, RatingPage

MAX_LENGTH = 10_000
FORMAT_NAMES: dict[ExportFormat, str] = {
    "jsonl": "JSON lines",
    "csv": "CSV",
    "parquet": "Parquet",
}

Text = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True)
class AskedRatings:
    """A filter as the form gave it. What makes no sense is left out of ``wanted``, and said in ``problems`` by field."""

    wanted: RatingFilter
    given: dict[str, str]
    problems: dict[str, str]


def asked_ratings(
    rating: Text = "",
    text: Text = "",
    bot: Text = "",
    since: Text = "",
    until: Text = "",
    length: Text = "",
    up_to: Text = "",
) -> AskedRatings:
    """Read what the form sends."""
    given = {"rating": rating, "since": since, "until": until, "length": length, "up_to": up_to}
    problems = {name: problem for name, text in given.items() if (problem := _problem(name, text))}
    sound = {name: "" if name in problems else text for name, text in given.items()}
    wanted = RatingFilter(
        thumbs_up={"up": True, "down": False}.get(sound["rating"]),
        text=text.strip(),
        bot=bot.strip(),
        since=_day(sound["since"]),
        until=_day(sound["until"]),
        min_length=int(sound["length"]) if sound["length"] else None,
        max_length=int(sound["up_to"]) if sound["up_to"] else None,
    )
    if wanted.since and wanted.until and wanted.until < wanted.since:
        problems["until"] = "This day is before the first one."
        wanted = replace(wanted, until=None)
    if None not in (wanted.min_length, wanted.max_length) and (
        (wanted.max_length or 0) < (wanted.min_length or 0)
    ):
        problems["up_to"] = "This is less than the least number."
        wanted = replace(wanted, max_length=None)
    return AskedRatings(wanted, given, problems)


def wanted_ratings(asked: Annotated[AskedRatings, Depends(asked_ratings)]) -> RatingFilter:
    """Return the filter; InvalidInput where a part of it makes no sense."""
    for name, problem in asked.problems.items():
        raise InvalidInput(f"{name}: {problem}")
    return asked.wanted


Asked = Annotated[AskedRatings, Depends(asked_ratings)]
Wanted = Annotated[RatingFilter, Depends(wanted_ratings)]


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)

    @routes.get("/submissions/{submission_id}/feedback")
    async def read_ratings(
        request: Request,
        submission_id: str,
        asked: Asked,
        order: Order = "newest",
        cursor: Text = "",
        show: Annotated[str, Query(max_length=64)] = "",
        member: Member = developer,
    ) -> Response:
        submission = await web.submissions.require_visible(member.account, submission_id)
        wanted = asked.wanted
        page = await web.ratings.page(member.account, submission_id, wanted, cursor or None, order)
        return web.pages.show(
            request,
            "feedback.html",
            status=422 if asked.problems else 200,
            submission=submission,
            wanted=wanted,
            given=asked.given,
            problems=asked.problems,
            order=order,
            overview=await web.ratings.overview(member.account, submission_id, wanted),
            most_counted=MOST_COUNTED,
            **_places(submission_id, page, wanted, order, cursor, show),
        )

    @routes.get("/submissions/{submission_id}/feedback.{form}")
    async def export(
        submission_id: str, form: ExportFormat, wanted: Wanted, member: Member = developer
    ) -> Response:
        made = await web.ratings.export(member.account, submission_id, wanted, form)
        answer = file_answer(made)
        for name, value in SECURITY_HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    @routes.get("/submissions/{submission_id}/feedback/{feedback_id}")
    async def read_rating(
        request: Request, submission_id: str, feedback_id: str, member: Member = developer
    ) -> Response:
        found = await web.ratings.find(member.account, submission_id, feedback_id)
        submission = await web.submissions.require_visible(member.account, submission_id)
        return web.pages.show(request, "rating.html", submission=submission, rating=found, hit="")


def _places(
    submission_id: str,
    page: RatingPage,
    wanted: RatingFilter,
    order: Order,
    cursor: str,
    show: str,
) -> dict[str, Any]:
    """Return what the page shows, and the links to its neighbours."""
    base = f"/submissions/{submission_id}/feedback"
    filtered = wanted.query()

    def link(cursor: str | None = None, show: str | None = None) -> str:
        values = {"order": order if order != "newest" else None, "cursor": cursor, "show": show}
        parameters = urlencode({name: value for name, value in values.items() if value})
        query = "&".join(part for part in (filtered, parameters) if part)
        return f"{base}?{query}" if query else base

    items, before = page.items, page.before
    ids = [rating.id for rating in items]
    place = ids.index(show) if show in ids else 0
    links = [link(cursor, rating.id) for rating in items]
    following = link(page.next_cursor) if page.next_cursor else None
    preceding = link(before.cursor, before.rating_id) if before else None
    return {
        "items": list(zip(items, links, strict=True)),
        "chosen": items[place] if items else None,
        "is_chosen": bool(show),
        "earlier": links[place - 1] if place > 0 else preceding,
        "later": links[place + 1] if place + 1 < len(items) else following,
        "next_page": following,
        "page_before": link(before.cursor) if before else None,
        "first_page": link() if cursor else None,
        "exports": [
            (FORMAT_NAMES[form], f"{base}.{form}?{filtered}" if filtered else f"{base}.{form}")
            for form in formats()
        ],
        "back": link(cursor),
    }


def _problem(name: str, text: str) -> str | None:
    """Return what is wrong with a field of the form, in a sentence."""
    if not text:
        return None
    if name == "rating":
        return None if text in ("up", "down") else "It is up or down."
    if name in ("since", "until"):
        return None if _day(text) else "It is a day, like 2026-01-31."
    is_number = text.isascii() and text.isdigit() and int(text) <= MAX_LENGTH
    return None if is_number else f"It is a number of messages, up to {MAX_LENGTH:,}."


def _day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if FIRST_YEAR <= day.year < LAST_YEAR else None
