"""The feedback viewer: ratings on one side, the chosen one's conversation on the other."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import InvalidInput
from guanaco.feedback import Feedback, FeedbackPage
from guanaco_server.feedback.api import file_answer
from guanaco_server.web.guards import Member
from guanaco_server.web.ratings import RatingFilter, length
from guanaco_server.web.rendering import SECURITY_HEADERS
from guanaco_server.web.web import Web

MAX_LENGTH = 10_000

Text = Annotated[str, Query(max_length=200)]


def add_routes(routes: APIRouter, web: Web) -> None:
    developer = web.guards.member(Role.DEVELOPER)

    @routes.get("/submissions/{submission_id}/feedback")
    async def read_ratings(
        request: Request,
        submission_id: str,
        rating: Text = "",
        text: Text = "",
        bot: Text = "",
        since: Text = "",
        until: Text = "",
        length: Text = "",
        cursor: Text = "",
        show: Annotated[str, Query(max_length=64)] = "",
        member: Member = developer,
    ) -> Response:
        submission = await web.submissions.require_visible(member.account, submission_id)
        wanted = _filter(rating, text, bot, since, until, length)
        page = await web.ratings.page(member.account, submission_id, wanted, cursor or None)
        return web.pages.show(
            request,
            "feedback.html",
            submission=submission,
            wanted=wanted,
            **_places(submission_id, page, wanted, cursor, show),
        )

    @routes.get("/submissions/{submission_id}/feedback.{form}")
    async def export(
        submission_id: str,
        form: Literal["jsonl", "csv", "parquet"],
        rating: Text = "",
        text: Text = "",
        bot: Text = "",
        since: Text = "",
        until: Text = "",
        length: Text = "",
        member: Member = developer,
    ) -> Response:
        wanted = _filter(rating, text, bot, since, until, length)
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
        return web.pages.show(request, "rating.html", submission=submission, rating=found)


def _places(
    submission_id: str, page: FeedbackPage, wanted: RatingFilter, cursor: str, show: str
) -> dict[str, Any]:
    """What is shown, and where its neighbours are."""
    base = f"/submissions/{submission_id}/feedback"
    filtered = wanted.query()

    def link(**values: str) -> str:
        query = "&".join(part for part in (filtered, urlencode(values)) if part)
        return f"{base}?{query}" if query else base

    def item(rating: Feedback) -> str:
        return link(**({"cursor": cursor} if cursor else {}), show=rating.id)

    ids = [rating.id for rating in page.items]
    place = ids.index(show) if show in ids else 0
    items = page.items
    following = link(cursor=page.next_cursor) if page.next_cursor else None
    return {
        "items": [(rating, item(rating), length(rating)) for rating in items],
        "chosen": items[place] if items else None,
        "is_chosen": bool(show),
        "earlier": item(items[place - 1]) if items and place > 0 else None,
        "later": item(items[place + 1]) if place + 1 < len(items) else following,
        "next_page": following,
        "first_page": link() if cursor else None,
        "exports": [
            (name, f"{base}.{form}?{filtered}" if filtered else f"{base}.{form}")
            for name, form in (("JSON lines", "jsonl"), ("CSV", "csv"))
        ],
        "back": link(**({"cursor": cursor} if cursor else {})),
    }


def _filter(rating: str, text: str, bot: str, since: str, until: str, length: str) -> RatingFilter:
    if rating not in ("", "up", "down"):
        raise InvalidInput("rating: It is up or down.")
    if length and not (length.isascii() and length.isdigit() and int(length) <= MAX_LENGTH):
        raise InvalidInput(f"length: It is a number of messages, up to {MAX_LENGTH:,}.")
    return RatingFilter(
        thumbs_up={"up": True, "down": False}.get(rating),
        text=text.strip(),
        bot=bot.strip(),
        since=_day("since", since),
        until=_day("until", until),
        min_length=int(length) if length else None,
    )


def _day(name: str, text: str) -> date | None:
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name}: It is a day, like 2026-01-31.") from None
