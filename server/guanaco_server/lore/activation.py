"""Decides which entries of a lorebook are told at a user's message.

    said: the newest messages  →  keys found  →  recursion: keys found in those contents  →  the budget  →  told

An entry that was told within the last EPOCH_MESSAGES is in force: it stays where it is and is not told again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.errors import InvalidInput
from guanaco.lore import MAX_SCAN_DEPTH, Lorebook, LoreEntry
from guanaco_server.lore.mentions import mentioned
from guanaco_server.lore.patterns import Pattern, compiled

EPOCH_MESSAGES = 20  # ten turns
MAX_BOOK_CHARS = 131_072  # keys and contents; stored with each conversation, as personas are
MAX_BOOK_KEYS = 1_000
MAX_BOOK_WORK = (
    7_000  # of regular expressions, for each character that they read: 0.1 s of a thread at most
)
MAX_BOOK_PATTERNS = 200  # each takes a millisecond to compile, besides its sets
MAX_BOOK_MAKING = (
    200_000  # characters that the sets of its expressions name: 0.1 s to compile, in a thread
)
SCANNED_CHARS = 8_192  # the newest
QUICK_UNITS = 4_096  # keys and characters that are read on the event loop, in a millisecond
PATTERN_CHARS = 1_024  # the newest, of which expressions read; as many of contents, at all levels of recursion together
BYTES_PER_TOKEN = 4


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
    patterns = sum(len(one.keys) + len(one.secondary_keys) for one in entries if one.is_regex)
    if patterns > MAX_BOOK_PATTERNS:
        raise InvalidInput(
            f"The lorebook has {patterns:,} regular expressions; {MAX_BOOK_PATTERNS} are allowed in all.",
            hint="Use plain words as keys.",
        )
    _require_cheap_patterns(entries)


def _require_cheap_patterns(entries: Iterable[LoreEntry]) -> None:
    """Add up what the expressions cost, and stop where that is too much: the rest is not compiled."""
    work = making = 0
    for one in entries:
        for pattern in _patterns(one) if one.is_regex else ():
            work, making = work + pattern.work, making + pattern.making
            if work > MAX_BOOK_WORK:
                raise InvalidInput(
                    "The lorebook's regular expressions together could take too long.",
                    hint="Use plain words as keys, or fewer `.*`.",
                )
            if making > MAX_BOOK_MAKING:
                raise InvalidInput(
                    "The sets in the lorebook's regular expressions name too many characters together.",
                    hint="Use plain words as keys, or smaller ranges.",
                )


def triggered(
    book: Lorebook, messages: Sequence[str], in_force: Collection[int]
) -> tuple[int, ...]:
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
    room = PATTERN_CHARS
    in_force_texts = [
        book.entries[place].content for place in in_force if place < len(book.entries)
    ]
    for level in range(book.recursion + 1):
        again = "\n".join(book.entries[place].content for place in found)[-SCANNED_CHARS:]
        texts = _scanned(book, messages, waiting.values())
        scans = {
            place: (one, again if level else texts[_depth(book, one)])
            for place, one in waiting.items()
        }
        new = _triggered_places(scans, room if level else PATTERN_CHARS)
        room -= min(room, len(again))
        for place in new:
            del waiting[place]
        found += new
        if not new:
            break
    return _within(book, found, book.token_budget - sum(map(tokens, in_force_texts)))


def takes_long(book: Lorebook, messages: Sequence[str]) -> bool:
    """Return whether ``triggered`` may take more than a millisecond or two, so that it belongs into a thread."""
    keys = sum(len(one.keys) + len(one.secondary_keys) for one in book.entries)
    chars = sum(map(len, messages[-MAX_SCAN_DEPTH:]))
    return bool(book.recursion) or keys + chars > QUICK_UNITS or has_patterns(book)


def has_patterns(book: Lorebook) -> bool:
    """Return whether it has regular expressions, which take long to compile the first time."""
    return any(one.is_regex for one in book.entries)


def constants(book: Lorebook | None) -> str:
    """Return the entries that are always told, as one text."""
    always = [one for one in (book.entries if book else ()) if one.is_constant and one.content]
    return "\n".join(one.content for one in sorted(always, key=lambda one: one.order))


def text_of(book: Lorebook | None, places: Iterable[int]) -> str:
    """Return the contents of these entries, a line each."""
    entries = () if book is None else book.entries
    return "\n".join(entries[place].content for place in places if place < len(entries))


def tokens(content: str) -> int:
    """Estimate a text's tokens: two models may answer one message, so no tokenizer is asked."""
    return -(-len(content.encode()) // BYTES_PER_TOKEN)


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


def _scanned(
    book: Lorebook, messages: Sequence[str], entries: Iterable[LoreEntry]
) -> dict[int, str]:
    """Return the text of the newest messages for each depth that an entry has."""
    return {
        depth: "\n".join(messages[len(messages) - min(depth, len(messages)) :])[-SCANNED_CHARS:]
        for depth in {_depth(book, one) for one in entries}
    }


def _triggered_places(scans: Mapping[int, tuple[LoreEntry, str]], pattern_chars: int) -> list[int]:
    """Return the places of the entries whose keys stand in the text that is theirs. Each text is read once for all keys."""
    wanted: dict[tuple[str, bool, bool], set[str]] = {}
    for one, text in scans.values():
        kind = (text, one.is_regex, one.is_case_sensitive)
        wanted.setdefault(kind, set()).update(one.keys, one.secondary_keys)
    found_keys = {kind: _matching_keys(*kind, keys, pattern_chars) for kind, keys in wanted.items()}

    def is_meant(one: LoreEntry, text: str) -> bool:
        there = found_keys[text, one.is_regex, one.is_case_sensitive]
        return not there.isdisjoint(one.keys) and (
            not one.secondary_keys or not there.isdisjoint(one.secondary_keys)
        )

    return [place for place, scan in scans.items() if is_meant(*scan)]


def _matching_keys(
    text: str, is_regex: bool, is_case_sensitive: bool, keys: Iterable[str], pattern_chars: int
) -> set[str]:
    if not is_regex:
        return mentioned(text, keys, is_case_sensitive=is_case_sensitive)
    newest = text[max(0, len(text) - pattern_chars) :]
    return {key for key in keys if _is_matched(key, is_case_sensitive, newest)}


def _is_matched(key: str, is_case_sensitive: bool, text: str) -> bool:
    try:
        pattern = compiled(key, is_case_sensitive).compiled
    except InvalidInput:  # stored by another version, which may allow more
        return False
    return pattern.search(text) is not None


def _patterns(entry: LoreEntry) -> Iterator[Pattern]:
    for key in (*entry.keys, *entry.secondary_keys):
        yield compiled(key, entry.is_case_sensitive)
