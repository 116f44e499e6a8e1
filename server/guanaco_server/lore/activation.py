"""Decides which entries of a lorebook are told at a user's message.

    said: the newest messages  →  keys found  →  recursion: keys found in those contents  →  the budget  →  told

An entry that was told within the last EPOCH_MESSAGES is in force: it stays where it is and is not told again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.errors import InvalidInput
from guanaco.lore import Lorebook, LoreEntry
from guanaco_server.lore.patterns import Pattern, compiled

EPOCH_MESSAGES = 20  # ten turns
MAX_BOOK_CHARS = 131_072  # keys and contents; stored with each conversation, as personas are
MAX_BOOK_KEYS = 1_000
MAX_BOOK_WORK = 7_000  # of regular expressions, for each character that they read: 30 ms of the event loop at most
SCANNED_CHARS = 8_192  # the newest; plain keys take a microsecond each there
PATTERN_CHARS = 1_024  # the newest, of which expressions read
BYTES_PER_TOKEN = 4
UNSPACED_FROM = "\u2e80"  # Chinese, Japanese and the like write no space between words


def require_usable(book: Lorebook) -> None:
    """Raise InvalidInput for a book that is too large, or has a key that could take long."""
    entries = book.entries
    keys = [key for one in entries for key in (*one.keys, *one.secondary_keys)]
    if len(keys) > MAX_BOOK_KEYS:
        raise InvalidInput(
            f"The lorebook has {len(keys):,} keys; {MAX_BOOK_KEYS:,} are allowed in all."
        )
    size = sum(map(len, keys)) + sum(len(one.content) + len(one.name) for one in entries)
    if size > MAX_BOOK_CHARS:
        raise InvalidInput(
            f"The lorebook's texts have {size:,} characters; {MAX_BOOK_CHARS:,} are allowed."
        )
    if (always := len(constants(book))) > MAX_MESSAGE_CHARS:
        raise InvalidInput(
            f"The lorebook's constant entries have {always:,} characters; {MAX_MESSAGE_CHARS:,} are allowed."
        )
    work = sum(pattern.work for one in entries if one.is_regex for pattern in _patterns(one))
    if work > MAX_BOOK_WORK:
        raise InvalidInput(
            "The lorebook's regular expressions together could take too long.",
            hint="Use plain words as keys, or fewer `.*`.",
        )


def triggered(book: Lorebook, said: Sequence[str], in_force: Collection[int]) -> tuple[int, ...]:
    """Return the places in the book of the entries to tell now, in the order in which they are told.

    Args:
        book: The entries, whose constant ones are never told here.
        said: The messages, the newest last.
        in_force: The places of the entries that were told within the epoch; they take of the budget.
    """
    waiting = {
        place: one
        for place, one in enumerate(book.entries)
        if place not in in_force and not one.is_constant and one.keys and one.content
    }
    found: list[int] = []
    told = [book.entries[place].content for place in in_force if place < len(book.entries)]
    for level in range(book.recursion + 1):
        texts = {} if level else _scanned(book, said, waiting.values())
        again = "\n".join(book.entries[place].content for place in found)
        new = [
            place
            for place, one in waiting.items()
            if _is_meant(one, again if level else texts[_depth(book, one)])
        ]
        for place in new:
            del waiting[place]
        found += new
        if not new:
            break
    return _within(book, found, book.token_budget - sum(map(tokens, told)))


def constants(book: Lorebook | None) -> str:
    """The entries that are always told, as one text."""
    if book is None:
        return ""
    return _constants(book)


def text_of(book: Lorebook | None, places: Iterable[int]) -> str:
    """The contents of these entries, a line each."""
    entries = () if book is None else book.entries
    return "\n".join(entries[place].content for place in places if place < len(entries))


def tokens(content: str) -> int:
    """Estimate a text's tokens: two models may answer one message, so no tokenizer is asked."""
    return -(-len(content.encode()) // BYTES_PER_TOKEN)


@lru_cache(maxsize=1024)
def _constants(book: Lorebook) -> str:
    always = [one for one in book.entries if one.is_constant and one.content]
    return "\n".join(one.content for one in sorted(always, key=lambda one: one.order))


def _within(book: Lorebook, found: Sequence[int], budget: int) -> tuple[int, ...]:
    """Keep those with the highest priority, then the highest order, that the budget has room for."""
    entries, kept = book.entries, []
    for place in sorted(
        found, key=lambda place: (-entries[place].priority, -entries[place].order, place)
    ):
        if (size := tokens(entries[place].content)) <= budget:
            budget -= size
            kept.append(place)
    return tuple(sorted(kept, key=lambda place: (entries[place].order, place)))


def _depth(book: Lorebook, entry: LoreEntry) -> int:
    return book.scan_depth if entry.scan_depth is None else entry.scan_depth


def _scanned(book: Lorebook, said: Sequence[str], entries: Iterable[LoreEntry]) -> dict[int, str]:
    """The text of the newest messages for each depth that an entry has."""
    return {
        depth: "\n".join(said[len(said) - min(depth, len(said)) :])[-SCANNED_CHARS:]
        for depth in {_depth(book, one) for one in entries}
    }


def _is_meant(entry: LoreEntry, text: str) -> bool:
    is_said = _is_said_by_pattern if entry.is_regex else _is_said
    return any(is_said(entry, key, text) for key in entry.keys) and (
        not entry.secondary_keys or any(is_said(entry, key, text) for key in entry.secondary_keys)
    )


def _is_said_by_pattern(entry: LoreEntry, key: str, text: str) -> bool:
    try:
        pattern = compiled(key, entry.is_case_sensitive).compiled
    except InvalidInput:  # stored by a newer version, which may allow more
        return False
    return pattern.search(text[-PATTERN_CHARS:]) is not None


def _is_said(entry: LoreEntry, key: str, text: str) -> bool:
    """Return whether a key stands in a text as whole words."""
    if not entry.is_case_sensitive:
        key, text = key.casefold(), _folded(text)
    key = key.strip()
    begin = text.find(key) if key else -1
    while begin >= 0:
        end = begin + len(key)
        if not (
            _is_joined(text[begin - 1 : begin], key[0]) or _is_joined(key[-1], text[end : end + 1])
        ):
            return True
        begin = text.find(key, begin + 1)
    return False


@lru_cache(maxsize=16)
def _folded(text: str) -> str:
    return text.casefold()


def _is_joined(left: str, right: str) -> bool:
    """Return whether two characters are of one word."""
    return all(one.isalnum() and one < UNSPACED_FROM for one in (left, right))


def _patterns(entry: LoreEntry) -> list[Pattern]:
    keys = (*entry.keys, *entry.secondary_keys)
    return [compiled(key, entry.is_case_sensitive) for key in keys]
