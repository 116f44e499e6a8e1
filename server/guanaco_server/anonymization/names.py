"""The user's own name, as the app gave it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from guanaco_server.anonymization.spans import Span, Tag

NO_NAMES = frozenset({"you", "user", "me", "i", "anonymous", "guest", "human", "anon"})
SHORTEST = 2
SHORTEST_PART = 3  # of a name of several words; shorter ones are initials, or "of"


def find(text: str, user_name: str) -> Iterator[Span]:
    """The whole name in any case, and each word of it where it begins with a capital."""
    pattern = _pattern(user_name)
    if pattern is not None:
        for match in pattern.finditer(text):
            yield Span(*match.span(), Tag.USER)


@lru_cache(maxsize=1_024)
def _pattern(user_name: str) -> re.Pattern[str] | None:
    name = user_name.strip()
    if len(name) < SHORTEST or name.lower() in NO_NAMES:
        return None
    words = name.split()
    whole = r"\s+".join(re.escape(word) for word in words)
    parts = [
        re.escape(form)
        for word in words
        if len(words) > 1 and len(word) >= SHORTEST_PART and word.lower() != "the"
        for form in {word.capitalize(), word.upper()}
    ]
    alternatives = "|".join((f"(?i:{whole})", *sorted(parts)))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")
