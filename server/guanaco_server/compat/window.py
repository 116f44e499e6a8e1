"""The window of the old client's leaderboard, as it writes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from guanaco.errors import InvalidInput

DAY = len("2023-12-01")


def start(text: str | None) -> datetime | None:
    """A day begins with its first moment; a time without a zone is UTC."""
    return None if text is None else _moment(text, "start_date")


def end(text: str | None) -> datetime | None:
    """A day is within the window to its end; a time is the first that no longer is."""
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
