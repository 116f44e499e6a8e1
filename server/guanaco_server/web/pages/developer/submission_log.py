"""A submission's log: live, in pages that one may search, and as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from guanaco.accounts import Role
from guanaco.submissions import Level, SubmissionEvent
from guanaco_server.http.routes import Routes
from guanaco_server.http.sse import encode_event, event_stream
from guanaco_server.submissions.runs.events import LogFilter, encoded
from guanaco_server.web.access.guards import Member
from guanaco_server.web.rendering import SECURITY_HEADERS
from guanaco_server.web.room import WebRoom

EVENTS_SHOWN = 100
MAX_SEQ = 2**31 - 1  # what the database's integer holds

LevelName = Annotated[Level | Literal[""], Query()]
Before = Annotated[int, Query(ge=0, le=MAX_SEQ)]


def wanted_lines(
    q: Annotated[str, Query(max_length=200)] = "", level: LevelName = "", before: Before = 0
) -> LogFilter:
    """Read what the form sends; ``before`` is 0 on the last page."""
    return LogFilter(Level(level) if level else None, q.strip(), before or None)


Wanted = Annotated[LogFilter, Depends(wanted_lines)]


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)

    @routes.get("/submissions/{submission_id}/events")
    async def follow_events(
        submission_id: str,
        after: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
        last_event_id: Annotated[int, Header(ge=0, le=MAX_SEQ)] = 0,
        member: Member = developer,
    ) -> Response:
        await web.submissions.ensure_visible(member.account, submission_id)
        events = web.events.follow(submission_id, max(after, last_event_id))
        return event_stream(_with_end(encoded(events)))

    @routes.get("/submissions/{submission_id}/log")
    async def read_log(
        request: Request, submission_id: str, wanted: Wanted, member: Member = developer
    ) -> Response:
        submission = await web.submissions.require_visible(member.account, submission_id)
        log = await log_view(web, submission_id, wanted)
        return web.pages.show(request, "log.html", submission=submission, log=log)

    @routes.get("/submissions/{submission_id}/log.txt")
    async def download_log(
        submission_id: str, wanted: Wanted, member: Member = developer
    ) -> Response:
        await web.submissions.ensure_visible(member.account, submission_id)
        events = web.events.follow(submission_id, 0, wait=False)
        headers = SECURITY_HEADERS | {
            "Content-Disposition": f'attachment; filename="{submission_id}.log"'
        }
        return StreamingResponse(_lines(events, wanted), media_type="text/plain", headers=headers)


async def log_view(web: WebRoom, submission_id: str, wanted: LogFilter) -> dict[str, Any]:
    """Return a page of the log, and the links to the page before it and to the file."""
    page = await web.events.page(submission_id, wanted, EVENTS_SHOWN)
    base = f"/submissions/{submission_id}/log"
    chosen = {"q": wanted.text, "level": wanted.level.value if wanted.level else ""}
    query = {name: value for name, value in chosen.items() if value}
    earlier = {**query, "before": str(page.events[0].seq)} if page.has_earlier else None
    return {
        "events": page.events,
        "wanted": wanted,
        "levels": [level for level in Level if level is not Level.DEBUG],
        "earlier": f"{base}?{urlencode(earlier)}" if earlier else None,
        "newest": f"{base}?{urlencode(query)}" if query else base,
        "file": f"{base}.txt?{urlencode(query)}" if query else f"{base}.txt",
    }


async def _lines(
    events: AsyncIterator[SubmissionEvent | None], wanted: LogFilter
) -> AsyncIterator[str]:
    async for event in events:
        if event is not None and wanted.lets_through(event):
            stage = f" {event.stage}" if event.stage else ""
            message = event.message.replace("\n", "\n    ")
            yield f"{event.at.isoformat(timespec='milliseconds')} {event.level}{stage} {message}\n"


async def _with_end(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Add an event at the end, so that a browser does not take the end for a broken connection and ask again."""
    async for event in events:
        yield event
    yield encode_event("end", {})
