"""Shortens a persona by rule, and measures how much of what it says a shorter version still says.

The facts of a persona are its names, its numbers, and the key words of its sentences. A fact's weight is 3 for a name or a
number and 1 for another word. The share that a version keeps is the weight of the facts that stand in it, of all.

    cut      whole sentences from the beginning, as many as fit
    extract  the sentences that add the most weight for their length, one after the other, in the order of the original:
             what is said twice is dropped, names and numbers stay
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

METHOD_VERSION = 1  # part of the key under which versions are kept: a better rule makes them again
FACT_WEIGHT = 3.0  # of a name or a number
FIRST_BONUS = 1.5  # of the first sentence, which says who it is
MOST_SENTENCES = 2_000

SENTENCE = re.compile(
    r"[^.!?…\u3002\uff01\uff1f\n]+[.!?…\u3002\uff01\uff1f]*[\"”')\]]*\s*|\n\s*|[.!?…\u3002\uff01\uff1f]+\s*"
)
NAME = re.compile(r"(?<=[\w,;:\"“(] )[A-Z][\w'-]+|(?<=\w )[A-Z]\w*")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
WORD = re.compile(r"[^\W\d_]{4,}")
UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]{2,}")


def facts(text: str) -> dict[str, float]:
    """Return the facts of a text with their weights, in lower case. In text without spaces, two characters count as one."""
    found: dict[str, float] = {}
    for run in UNSPACED.findall(text):
        found |= dict.fromkeys((run[place : place + 2] for place in range(len(run) - 1)), 1.0)
    found |= {word.casefold(): 1.0 for word in WORD.findall(text) if not UNSPACED.search(word)}
    found |= {name.casefold(): FACT_WEIGHT for name in NAME.findall(text)}
    found |= dict.fromkeys(NUMBER.findall(text), FACT_WEIGHT)
    return found


def kept_share(original: str, version: str) -> float:
    """Return the share of the original's facts that the version keeps, from 0 to 1."""
    weights = facts(original)
    total = sum(weights.values())
    kept = facts(version)
    return sum(weight for fact, weight in weights.items() if fact in kept) / total if total else 1.0


def sentences(text: str) -> list[str]:
    """Split a text into its sentences, each with what stands behind it: joined, they are the text."""
    found = SENTENCE.findall(text)
    head, rest = found[:MOST_SENTENCES], found[MOST_SENTENCES:]
    return [*head, "".join(rest)] if rest else head


def grouped(parts: Sequence[str], sizes: Sequence[int], room: int) -> Iterator[tuple[str, int]]:
    """Join sentences to texts of at most ``room`` tokens, with their sizes; a longer sentence is one by itself."""
    text, size = "", 0
    for part, own in zip(parts, sizes, strict=True):
        if text.strip() and size + own > room:
            yield text, size
            text, size = "", 0
        text, size = text + part, size + own
    if text.strip():
        yield text, size


def cut(parts: Sequence[str], sizes: Sequence[int], budget: int) -> str:
    """Return as many sentences from the beginning as take at most ``budget`` tokens."""
    kept, left = 0, budget
    while kept < len(parts) and sizes[kept] <= left:
        left -= sizes[kept]
        kept += 1
    return "".join(parts[:kept]).rstrip()


def extract(parts: Sequence[str], sizes: Sequence[int], budget: int) -> str:
    """Return the sentences that keep the most facts in at most ``budget`` tokens. The same input gives the same text."""
    weights = facts("".join(parts))
    part_facts = [set(facts(part)) & weights.keys() for part in parts]
    chosen: set[int] = set()
    known: set[str] = set()
    left = budget
    queue = [
        (-_worth(place, part_facts[place], weights, sizes), place)
        for place, part in enumerate(parts)
        if part.strip()
    ]
    heapify(queue)
    while queue:
        before, place = heappop(queue)
        worth = _worth(place, part_facts[place] - known, weights, sizes)
        if worth <= 0 or sizes[place] > left:
            continue
        if worth < -before:  # others have told some of it meanwhile
            heappush(queue, (-worth, place))
            continue
        chosen.add(place)
        known |= part_facts[place]
        left -= sizes[place]
    return _joined(parts, chosen)


def _worth(
    place: int, new: Iterable[str], weights: dict[str, float], sizes: Sequence[int]
) -> float:
    worth = sum([weights[fact] for fact in new]) / max(1, sizes[place])
    return worth * FIRST_BONUS if place == 0 else worth


def _joined(parts: Sequence[str], chosen: set[int]) -> str:
    """Return the chosen sentences in their order, on lines as in the original."""
    texts: list[str] = []
    for place, part in enumerate(parts):
        if place in chosen:
            texts.append(part)
        elif "\n" in part and texts and not texts[-1].endswith("\n"):
            texts.append("\n")
    return "".join(texts).strip()
