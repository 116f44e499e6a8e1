"""Ratings over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from guanaco.accounts import Role
from guanaco.feedback import Feedback, FeedbackPage, FeedbackRecorded, FeedbackRequest
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.feedback.service import FeedbackService

NDJSON = "application/x-ndjson"

Limit = Annotated[int, Query(ge=1, le=500)]


def router(feedback: FeedbackService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["feedback"])
    backend = auth.require(Role.BACKEND)
    developer = auth.require(Role.DEVELOPER)

    @routes.post("/conversations/{conversation_id}/feedback", status_code=201)
    async def rate(
        conversation_id: str, request: FeedbackRequest, account: Account = backend
    ) -> FeedbackRecorded:
        return await feedback.rate(account, conversation_id, request)

    @routes.get("/submissions/{submission_id}/feedback", response_model=FeedbackPage)
    async def read_feedback(
        submission_id: str,
        cursor: str | None = None,
        limit: Limit = 100,
        accept: Annotated[str, Header()] = "application/json",
        account: Account = developer,
    ) -> FeedbackPage | Response:
        """A page; with `Accept: application/x-ndjson` everything, a rating a line."""
        if NDJSON in accept:
            items = await feedback.stream(account, submission_id)
            return StreamingResponse(_lines(items), media_type=NDJSON)
        return await feedback.page(account, submission_id, cursor, limit)

    return routes


async def _lines(items: AsyncIterator[Feedback]) -> AsyncIterator[bytes]:
    async for item in items:
        yield item.model_dump_json().encode() + b"\n"
