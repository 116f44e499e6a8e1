"""Marks the words that were searched for, in texts that strangers wrote."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from guanaco.feedback import Feedback

EXCERPT_CHARS = 90
LEAD_CHARS = 30  # of an excerpt, before what was searched for


def marked(text: str, hit: str) -> Markup:
    """Escape a text, and set every place of ``hit``, in either case of letters, as a mark."""
    if not hit:
        return escape(text)
    parts = re.split(f"({re.escape(hit)})", text, flags=re.IGNORECASE)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(part) if place % 2 else part
        for place, part in enumerate(parts)
    )


def excerpt(rating: Feedback, hit: str) -> str:
    """Return some words of a rating: those around ``hit`` if it is there, of the conversation if it is only there."""
    if not hit or _place(rating.text, hit) is not None:
        return around(rating.text, hit)
    texts = (rating.first_message, *(message.content for message in rating.messages))
    found = next((text for text in texts if _place(text, hit) is not None), None)
    return rating.text[:EXCERPT_CHARS] if found is None else around(found, hit)


def around(text: str, hit: str) -> str:
    place = _place(text, hit) or 0
    begin = max(0, place - LEAD_CHARS) if place + len(hit) > EXCERPT_CHARS else 0
    if begin:
        begin = text.find(" ", begin, place) + 1 or begin
    end = begin + max(EXCERPT_CHARS, place - begin + len(hit))
    return f"{'…' if begin else ''}{text[begin:end].rstrip()}{'…' if end < len(text) else ''}"


def _place(text: str, hit: str) -> int | None:
    found = re.search(re.escape(hit), text, re.IGNORECASE) if hit else None
    return found.start() if found else None
