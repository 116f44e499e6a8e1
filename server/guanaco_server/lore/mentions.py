"""Finds which keys a text mentions as whole words, in time that grows with the text and the keys, and not with their product.

    text  →  words: letters and digits that stand together; every other character is a word of its own
    key   →  the same; it is mentioned where its words follow one another in the text

A key of one word is looked up among the words. Keys of several words are searched for, until that has cost SEARCH_STEPS; the rest are looked
up in the sorted list of all places where a word begins, which 8,192 characters of the worst kind take some 10 ms to make.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

WORD = re.compile(
    r"[^\W_\u2e80-\U0010ffff]+|.", re.DOTALL
)  # Chinese, Japanese and the like write no space between words
MARK = "\x00"  # between words; no text that is stored holds it
SEARCH_STEPS = 4_000_000  # a key's characters times the text's: less than 5 ms
KEPT_KEYS = 4_096  # of 200 characters at most


def mentioned(text: str, keys: Iterable[str], *, is_case_sensitive: bool) -> set[str]:
    """Return those of the keys that stand in the text as whole words."""
    if not is_case_sensitive:
        text = text.casefold()
    words = [word for word in WORD.findall(text) if word != MARK]
    known = set(words)
    found = set()
    phrases: list[tuple[str, str]] = []
    for key in set(keys):
        in_key, marked = _words_of(key, is_case_sensitive)
        if not in_key or not known.issuperset(in_key):
            continue
        if len(in_key) == 1:
            found.add(key)
        else:
            phrases.append((key, marked))
    return found | _phrases_in(words, phrases) if phrases else found


def _phrases_in(words: list[str], phrases: list[tuple[str, str]]) -> set[str]:
    text = _marked(words)
    found: set[str] = set()
    steps = 0
    for place, (key, marked) in enumerate(phrases):
        steps += len(marked) * len(text)
        if steps > SEARCH_STEPS:
            return found | _looked_up(text, phrases[place:])
        if marked in text:
            found.add(key)
    return found


def _looked_up(text: str, phrases: list[tuple[str, str]]) -> set[str]:
    longest = max(len(marked) for _, marked in phrases)
    begins = sorted(
        text[place : place + longest] for place, one in enumerate(text[:-1]) if one == MARK
    )
    found = set()
    for key, marked in phrases:
        place = bisect_left(begins, marked)
        if place < len(begins) and begins[place].startswith(marked):
            found.add(key)
    return found


@lru_cache(maxsize=KEPT_KEYS)
def _words_of(key: str, is_case_sensitive: bool) -> tuple[tuple[str, ...], str]:
    """Return a key's words, and the key with marks between and around them."""
    words = WORD.findall((key if is_case_sensitive else key.casefold()).strip())
    return tuple(words), _marked(words)


def _marked(words: list[str]) -> str:
    return f"{MARK}{MARK.join(words)}{MARK}"
