"""The old client's routes.

Some of its GET requests change state. The key is therefore read from a header only, never from a query: no link and no
page of another site can send such a request.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from guanaco.accounts import Role
from guanaco.competitions import Competition
from guanaco.errors import InvalidInput
from guanaco_server.accounts.auth import BEARER, Auth, bearer_key
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.compat.schemas import (
    ChatReply,
    ChatRequest,
    OldFeedbackPage,
    OldLeaderboardRow,
    OldSubmission,
    OldSubmissionInfo,
    SubmitRequest,
    Submitted,
)
from guanaco_server.compat.service import OldClientService
from guanaco_server.http.routes import Routes

MAY_CONFLICT: dict[int | str, dict[str, Any]] = {409: {}, 429: {}}
DAY = len("2023-12-01")
KEY_HEADER = "developer_key"
OLD_KEY = {"old_key": {"type": "apiKey", "in": "header", "name": KEY_HEADER}}
NOT_KEPT = {"Cache-Control": "no-store"}


def router(old: OldClientService, accounts: AccountService) -> Routes:
    routes = Routes(tags=["old client"])
    auth = Auth(accounts, _key, BEARER | OLD_KEY)
    anyone, developer = auth.require(*Role), auth.require(Role.DEVELOPER)
    _add_models(routes, old, developer)

    @routes.get("/leaderboard")
    async def read_leaderboard(
        start_date: str | None = None, end_date: str | None = None, account: Account = anyone
    ) -> dict[str, OldLeaderboardRow]:
        return await old.ranked(window_start(start_date), window_end(end_date))

    @routes.get("/feedback/{submission_id}", response_model=OldFeedbackPage)
    async def read_feedback(submission_id: str, account: Account = developer) -> Response:
        body = await old.read_feedback(account, submission_id)
        return StreamingResponse(body, media_type="application/json", headers=NOT_KEPT)

    @routes.get("/competitions")
    async def list_competitions() -> list[Competition]:
        return await old.list_competitions()

    return routes


def _add_models(routes: Routes, old: OldClientService, developer: Any) -> None:
    @routes.post("/models/submit")
    async def submit(request: SubmitRequest, account: Account = developer) -> Submitted:
        return await old.submit(account, request)

    @routes.get("/models/")
    async def list_own(account: Account = developer) -> dict[str, OldSubmission]:
        return await old.list_own(account)

    @routes.get("/models/{submission_id}")
    async def read(submission_id: str, account: Account = developer) -> OldSubmissionInfo:
        return await old.read(account, submission_id)

    @routes.post("/models/{submission_id}/chat")
    async def chat(
        submission_id: str, request: ChatRequest, account: Account = developer
    ) -> ChatReply:
        return await old.chat(account, submission_id, request)

    for change in (old.deactivate, old.redeploy, old.teardown, old.evaluate):
        _add_change(routes, change, developer)


def _add_change(routes: Routes, change: Any, developer: Any) -> None:
    async def endpoint(
        submission_id: str, response: Response, account: Account = developer
    ) -> OldSubmission:
        response.headers.update(NOT_KEPT)
        moved: OldSubmission = await change(account, submission_id)
        return moved

    name = change.__name__
    path = f"/models/{{submission_id}}/{name}"
    routes.add_api_route(path, endpoint, methods=["GET"], name=name, responses=MAY_CONFLICT)


def _key(request: Request) -> str:
    """Take the key from either header; the old client has one call for each."""
    key = request.headers.get(KEY_HEADER, "").strip()
    return key or bearer_key(request)


def window_start(text: str | None) -> datetime | None:
    """Return the first moment of the leaderboard's window. A time without a zone is UTC."""
    return None if text is None else _moment(text, "start_date")


def window_end(text: str | None) -> datetime | None:
    """Return the first moment after the window. A day is within the window to its end."""
    if text is None:
        return None
    moment = _moment(text, "end_date")
    return moment + timedelta(days=1) if len(text) == DAY else moment


def _moment(text: str, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        if not 1970 <= aware.astimezone(UTC).year < 9999:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name} takes a day like 2023-12-01, or a time in ISO 8601.") from None
    return aware
