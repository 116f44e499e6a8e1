"""Ratings over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from guanaco.accounts import Role
from guanaco.feedback import (
    Erasure,
    ErasureRequest,
    ExportQuery,
    Feedback,
    FeedbackFilter,
    FeedbackPage,
    FeedbackQuery,
    FeedbackRecorded,
    FeedbackRequest,
    Rating,
    RatingChange,
    RawFeedback,
)
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.feedback.erasures.service import ErasureService
from guanaco_server.feedback.exports.export import MEDIA_TYPES, NDJSON, Export
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.http.routes import Routes

LINES = {"schema": {"type": "string", "description": "A `Feedback` in each line."}}
EXPORTED: dict[str, Any] = {
    "description": "The file. `X-Next-Cursor` leads to what is new since.",
    "content": {media: {"schema": {"type": "string"}} for media in MEDIA_TYPES.values()},
}


def router(feedback: FeedbackService, erasures: ErasureService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["feedback"])
    backend = auth.require(Role.BACKEND)
    talker = auth.require(Role.BACKEND, Role.DEVELOPER)  # developers with their own submissions
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.post("/conversations/{conversation_id}/feedback", status_code=201)
    async def rate(
        conversation_id: str, request: FeedbackRequest, account: Account = talker
    ) -> FeedbackRecorded:
        return await feedback.rate(account, conversation_id, request)

    @routes.get("/conversations/{conversation_id}/feedback")
    async def read_rating(conversation_id: str, account: Account = talker) -> Rating:
        return await feedback.read(account, conversation_id)

    @routes.put("/conversations/{conversation_id}/feedback")
    async def change_rating(
        conversation_id: str, request: FeedbackRequest, account: Account = talker
    ) -> Rating:
        """Change a rating within a day. What it was before is kept for the audit trail."""
        return await feedback.change(account, conversation_id, request)

    @routes.delete("/conversations/{conversation_id}/feedback", status_code=204)
    async def withdraw_rating(conversation_id: str, account: Account = talker) -> None:
        """Withdraw a rating within a day. It is no longer shown; ranks keep it as the user's first vote. The conversation can be rated again."""
        await feedback.withdraw(account, conversation_id)

    @routes.get(
        "/submissions/{submission_id}/feedback",
        response_model=FeedbackPage,
        responses={200: {"content": {NDJSON: LINES}}},
    )
    async def read_feedback(
        submission_id: str,
        query: Annotated[FeedbackQuery, Query()],
        accept: Annotated[str, Header()] = "application/json",
        account: Account = developer,
    ) -> FeedbackPage | Response:
        """A page; with `Accept: application/x-ndjson` everything, a rating a line."""
        if NDJSON in accept:
            wanted = FeedbackFilter(**query.model_dump(exclude={"cursor", "limit", "order"}))
            return file_answer(
                await feedback.export(account, submission_id, wanted, "jsonl", query.cursor)
            )
        return await feedback.page(
            account, submission_id, query.cursor, query.limit, query, query.order
        )

    @routes.get(
        "/submissions/{submission_id}/feedback/export",
        response_class=StreamingResponse,
        responses={200: EXPORTED, 501: {}},
    )
    async def export_feedback(
        submission_id: str, query: Annotated[ExportQuery, Query()], account: Account = developer
    ) -> Response:
        """A file of everything; `X-Next-Cursor`, given back as `cursor`, leads to what is new since."""
        return file_answer(
            await feedback.export(account, submission_id, query, query.format, query.cursor)
        )

    @routes.get("/feedback/{feedback_id}")
    async def read_one(feedback_id: str, account: Account = developer) -> Feedback:
        return await feedback.find(account, feedback_id)

    @routes.get("/feedback/{feedback_id}/raw")
    async def read_raw_feedback(feedback_id: str, account: Account = admin) -> RawFeedback:
        """Return a rating as the user wrote it. Each reading is noted in the audit log."""
        return await feedback.read_raw(account, feedback_id)

    @routes.get("/feedback/{feedback_id}/changes")
    async def read_changes(feedback_id: str, account: Account = admin) -> list[RatingChange]:
        """Return what a rating was before it was changed or withdrawn. Each reading is noted in the audit log."""
        return await feedback.changes(account, feedback_id)

    @routes.delete("/feedback/{feedback_id}/quote", status_code=204)
    async def hide_quote(feedback_id: str, account: Account = admin) -> None:
        """Show a rating's words no longer on its model's public page. It is noted in the audit log."""
        await feedback.hide_quote(account, feedback_id)

    @routes.post("/users/erase")
    async def erase_user(request: ErasureRequest, account: Account = backend) -> Erasure:
        """Erase everything of one user for good. A backend erases its own users, an admin anybody's."""
        return await erasures.erase_own(account, request)

    @routes.delete("/conversations/{conversation_id}", status_code=204)
    async def delete_conversation(conversation_id: str, account: Account = talker) -> None:
        """Delete a conversation for good, with its messages and its rating."""
        await erasures.delete_conversation(account, conversation_id)

    return routes


def file_answer(export: Export) -> StreamingResponse:
    headers = {
        "Content-Disposition": f'attachment; filename="{export.file_name}"',
        "X-Next-Cursor": export.next_cursor,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(export.chunks, media_type=export.media_type, headers=headers)
