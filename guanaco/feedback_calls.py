"""The calls about feedback: filters, exports, and what admins may do. As calls.py, which has all others."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from guanaco.accounts import AuditPage
from guanaco.calls import API, _get, _id, _of, _post
from guanaco.contract import reader
from guanaco.errors import InvalidInput
from guanaco.feedback import (
    Erasure,
    ErasureRequest,
    ExportQuery,
    Feedback,
    FeedbackPage,
    FeedbackQuery,
    RawFeedback,
)
from guanaco.wire import Call, Request


def feedback_page(
    submission_id: str, *, cursor: str | None = None, limit: int = 100, **filters: Any
) -> Call[FeedbackPage]:
    """One page of feedback, oldest first. ``feedback`` walks through all of them, and names the filters."""
    query = _checked(FeedbackQuery, filters | {"cursor": cursor, "limit": limit})
    return _get(
        _of(submission_id, "feedback"),
        parse=reader(FeedbackPage).from_json,
        params=_params(query) | {"limit": str(limit)},
    )


def feedback_of(feedback_id: str) -> Call[Feedback]:
    """One rating with its conversation."""
    return _get(f"/feedback/{_id(feedback_id)}", parse=reader(Feedback).from_json)


def export(submission_id: str, **query: Any) -> Request:
    """The file of all feedback."""
    checked = _checked(ExportQuery, query)
    return Request(
        method="GET",
        path=f"{API}{_of(submission_id, 'feedback', 'export')}",
        params=_params(checked),
    )


def raw_feedback(feedback_id: str) -> Call[RawFeedback]:
    """A rating as the user wrote it. Admin; each reading is audited."""
    return _get(f"/feedback/{_id(feedback_id)}/raw", parse=reader(RawFeedback).from_json)


def erase_user(user_id: str, *, account: str | None = None) -> Call[Erasure]:
    """Everything of one user of a backend, for good. Admin."""
    request = ErasureRequest(user_id=user_id, account=account)
    return _post("/users/erase", request, parse=reader(Erasure).from_json)


def audit(*, cursor: str | None = None, limit: int = 100) -> Call[AuditPage]:
    """Who read or erased users' raw data, newest first. Admin."""
    params = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
    return _get("/audit", parse=reader(AuditPage).from_json, params=params)


def _checked(model: type[FeedbackQuery] | type[ExportQuery], query: dict[str, Any]) -> Any:
    try:
        return model(**query)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InvalidInput(f"{place}: {message}." if place else f"{message}.") from None


def _params(query: FeedbackQuery | ExportQuery) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in query.model_dump(mode="json", exclude_defaults=True).items()
    }
