"""Calls about feedback: to give it, to read it with filters, and to export it."""

from __future__ import annotations

from typing import Any

from guanaco.calls.wire import (
    API,
    Call,
    Request,
    delete,
    described,
    get,
    of_conversation,
    of_submission,
    post,
    put,
    segment,
)
from guanaco.feedback import (
    ExportQuery,
    Feedback,
    FeedbackPage,
    FeedbackQuery,
    FeedbackRecorded,
    FeedbackRequest,
    Rating,
    RatingChange,
    RawFeedback,
)


def rate(
    conversation_id: str,
    thumbs_up: bool,
    text: str = "",
    *,
    may_be_quoted: bool = False,
    idempotency_key: str | None = None,
) -> Call[FeedbackRecorded]:
    """Record what the user thought of the conversation, once it has a reply. Backend.

    Args:
        conversation_id: The conversation's id.
        thumbs_up: Whether the user liked it.
        text: The user's words.
        may_be_quoted: Whether the user agreed that these words are shown, anonymized, on the model's public page.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The FeedbackRecorded.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        AlreadyRated: It has a rating; change that one.
        NothingToRate: The model has not replied yet.
    """
    request = FeedbackRequest(thumbs_up=thumbs_up, text=text, may_be_quoted=may_be_quoted)
    path = of_conversation(conversation_id, "feedback")
    return post(path, FeedbackRecorded, request, idempotency_key=idempotency_key)


def rating(conversation_id: str) -> Call[Rating]:
    """Read the rating of a conversation, and until when it can be changed. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        The Rating, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id, "feedback"), Rating)


def change_rating(
    conversation_id: str, thumbs_up: bool, text: str = "", *, may_be_quoted: bool = False
) -> Call[Rating]:
    """Put another rating in the place of one that is younger than a day. Backend.

    Args:
        conversation_id: The conversation's id.
        thumbs_up: Whether the user liked it.
        text: The user's words.
        may_be_quoted: Whether the user agreed that these words are shown, anonymized, on the model's public page.

    Returns:
        The Rating, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        RatingSettled: It is too old to be changed.
    """
    request = FeedbackRequest(thumbs_up=thumbs_up, text=text, may_be_quoted=may_be_quoted)
    return put(of_conversation(conversation_id, "feedback"), Rating, request)


def withdraw_rating(conversation_id: str) -> Call[None]:
    """Take back a rating that is younger than a day. The conversation can then be rated again. Backend.

    Args:
        conversation_id: The conversation's id.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        RatingSettled: It is too old to be withdrawn.
    """
    return delete(of_conversation(conversation_id, "feedback"))


def rating_changes(feedback_id: str) -> Call[list[RatingChange]]:
    """Read what a rating was before it was changed or withdrawn. Admin; each reading is audited.

    Args:
        feedback_id: The rating's id.

    Returns:
        A list of RatingChange objects.

    Raises:
        FeedbackNotFound: There is no such rating that you may read.
    """
    return get(f"/feedback/{segment(feedback_id)}/changes", list[RatingChange])


def feedback_page(
    submission_id: str, *, cursor: str | None = None, limit: int = 100, **filters: Any
) -> Call[FeedbackPage]:
    """List one page of feedback, oldest first. ``feedback`` walks through all of them, and names the filters.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        cursor: The ``next_cursor`` of the page before; None for the first page.
        limit: The most that are returned.

    Returns:
        The FeedbackPage.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    query = described(FeedbackQuery, **filters | {"cursor": cursor, "limit": limit})
    return get(
        of_submission(submission_id, "feedback"),
        FeedbackPage,
        params=_params(query) | {"limit": str(limit)},
    )


def feedback_of(feedback_id: str) -> Call[Feedback]:
    """Read one rating with its conversation.

    Args:
        feedback_id: The rating's id.

    Returns:
        The Feedback.

    Raises:
        FeedbackNotFound: There is no such rating that you may read.
    """
    return get(f"/feedback/{segment(feedback_id)}", Feedback)


def export(submission_id: str, **query: Any) -> Request:
    """Ask for the file of all feedback.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The request, which the client sends and writes to a file.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    checked = described(ExportQuery, **query)
    return Request(
        method="GET",
        path=f"{API}{of_submission(submission_id, 'feedback', 'export')}",
        params=_params(checked),
    )


def raw_feedback(feedback_id: str) -> Call[RawFeedback]:
    """Read a rating as the user wrote it. Admin; each reading is audited.

    Args:
        feedback_id: The rating's id.

    Returns:
        The RawFeedback.

    Raises:
        FeedbackNotFound: There is no such rating that you may read.
    """
    return get(f"/feedback/{segment(feedback_id)}/raw", RawFeedback)


def hide_quote(feedback_id: str) -> Call[None]:
    """Show a rating's words no longer on its model's public page. Admin; it is audited.

    Args:
        feedback_id: The rating's id.

    Raises:
        FeedbackNotFound: There is no such rating.
    """
    return delete(f"/feedback/{segment(feedback_id)}/quote")


def _params(query: FeedbackQuery | ExportQuery) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in query.model_dump(mode="json", exclude_defaults=True).items()
    }
