"""A filter as SQL."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, or_

from guanaco.feedback import FeedbackFilter
from guanaco_server.feedback.tables import FeedbackCopyRow


def conditions(wanted: FeedbackFilter) -> list[ColumnElement[bool]]:
    """One for each thing that is wanted."""
    copy, found = FeedbackCopyRow, list[ColumnElement[bool]]()
    if wanted.rating is not None:
        found.append(copy.thumbs_up.is_(wanted.rating == "up"))
    if wanted.search is not None:
        found.append(copy.words.contains(searchable(wanted.search), autoescape=True))
    if wanted.bot is not None:
        in_any_case = func.lower(copy.bot_name) == wanted.bot.lower()  # SQLite's is for ASCII only
        found.append(or_(copy.bot_name == wanted.bot, in_any_case))
    if wanted.user is not None:
        found.append(copy.pseudonym == wanted.user)
    if wanted.since is not None:
        found.append(copy.rated_at >= wanted.since)
    if wanted.until is not None:
        found.append(copy.rated_at < wanted.until)
    if wanted.min_length is not None:
        found.append(copy.length >= wanted.min_length)
    if wanted.max_length is not None:
        found.append(copy.length <= wanted.max_length)
    return found


def searchable(text: str) -> str:
    """As it is stored for searching: SQLite's LIKE folds the case of ASCII letters only, PostgreSQL's of none."""
    return text.casefold()
