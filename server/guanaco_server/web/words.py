"""Figures and states, in words for people; templates use them as filters."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from guanaco.open_enum import spoken as spoken

NOTHING = "\u2013"
TONES = {
    "deployed": "good",
    "ready": "good",
    "done": "good",
    "failed": "bad",
    "restarting": "bad",
    "cancelled": "quiet",
    "inactive": "quiet",
    "torn_down": "quiet",
    "sleeping": "quiet",
}


def tone(state: str) -> str:
    """good, bad, quiet or busy: how a badge looks, beside what it says."""
    return TONES.get(state, "busy")


def prose(text: str) -> Markup:
    """Return a sentence whose ``code`` is set as code, whether one backtick or two are around it."""
    return Markup(re.sub(r"(`{1,2})(.+?)\1", r"<code>\2</code>", str(escape(text))))  # noqa: S704 - it is escaped


def without_commands(text: str | None) -> str | None:
    """Leave out the sentences that name a command of the CLI, which a visitor of the pages has no use for."""
    sentences = re.split(r"(?<=[.;!?])\s+", text or "")
    return " ".join(one for one in sentences if "`guanaco " not in one) or None


def spaced_percents(text: str) -> str:
    """Write 46% as the pages write it, with a narrow space."""
    return re.sub(r"(?<=\d)%", "\u202f%", text)


def percent(share: float | None, digits: int = 0) -> str:
    return NOTHING if share is None else f"{share:.{digits}%}".replace("%", "\u202f%")


def count(value: int | None) -> str:
    """1234567 as 1.2 M."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}".removesuffix(".0") + f"\u202f{unit}"
    return f"{value:,}"


def size(value: int | None) -> str:
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f}\u202f{unit}"
    return f"{value}\u202fbytes"


def milliseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value / 1000:,.2f}\u202fs" if value >= 1_000 else f"{value:,.0f}\u202fms"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value < 60:
        return f"{value:.1f}\u202fs"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {rest:02}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60:02}\u202fmin"


HEADLINE_CHARS = 240


def headline(text: str) -> str:
    """Return a long message's first line, cut where a word ends."""
    first = text.strip().partition("\n")[0].strip()
    if len(first) <= HEADLINE_CHARS:
        return first
    return first[:HEADLINE_CHARS].rsplit(" ", 1)[0] + "\u2026"


def decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"


def moment(at: datetime | None) -> str:
    """Write a moment in UTC: the reader's own zone is not known to the server."""
    return NOTHING if at is None else f"{at:%d %b %Y, %H:%M} UTC".lstrip("0")


def day(at: datetime | None) -> str:
    return NOTHING if at is None else f"{at:%d %b %Y}".lstrip("0")


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def ago(at: datetime | None, now: datetime) -> str:
    """``3 h ago``; the day for what is older than a month."""
    if at is None:
        return "never"
    passed = max(timedelta(0), now - at)
    if passed < timedelta(minutes=1):
        return "just now"
    if passed < timedelta(hours=1):
        return f"{int(passed.total_seconds() // 60)}\u202fmin ago"
    if passed < timedelta(days=1):
        return f"{int(passed.total_seconds() // 3600)}\u202fh ago"
    if passed < timedelta(days=31):
        return f"{passed.days}\u202fd ago"
    return day(at)
