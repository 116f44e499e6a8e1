"""Holds the facts about a tokenizer that its own process reports; the platform never reads the tokenizer itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guanaco_server.tokenization.bounds import TokenBound
from guanaco_server.tokenization.breaks import Breaks

MAX_BEGIN_CHARS = 256
MAX_SPECIALS = 2_000  # each is looked for where two chunks meet; Llama 3 has 256
MAX_SPECIAL_CHARS = 100_000
MAX_ADDED_PAIRS = 10_000


@dataclass(frozen=True)
class TokenizerFacts:
    """``entries`` is the highest id + 1 that the file names, ``highest`` the highest that the library found, with its token.

    ``begin`` is the text of the token that every prompt begins with. ``bound`` is None where no count is certain.
    """

    entries: int
    highest: int
    highest_token: str | None
    special_tokens: int
    begin: str
    breaks: Breaks
    bound: TokenBound | None


def facts_as_json(facts: TokenizerFacts) -> dict[str, Any]:
    breaks, bound = _bounded(facts.breaks), facts.bound
    return {
        "entries": facts.entries,
        "highest": facts.highest,
        "highest_token": facts.highest_token,
        "special_tokens": facts.special_tokens,
        "begin": facts.begin if len(facts.begin) <= MAX_BEGIN_CHARS else "",
        "breaks": {
            "specials": list(breaks.specials),
            "added_pairs": sorted(breaks.added_pairs),
            "after_newline": "".join(sorted(breaks.after_newline)),
            "are_letters_free": breaks.are_letters_free,
            "is_split_at_spaces": breaks.is_split_at_spaces,
            "does_swallow_spaces": breaks.does_swallow_spaces,
        },
        "bound": bound and {"around": bound.around, "factor": bound.factor},
    }


def facts_of_json(content: dict[str, Any]) -> TokenizerFacts:
    breaks, bound = content["breaks"], content["bound"]
    return TokenizerFacts(
        entries=int(content["entries"]),
        highest=int(content["highest"]),
        highest_token=content["highest_token"],
        special_tokens=int(content["special_tokens"]),
        begin=str(content["begin"]),
        breaks=Breaks(
            specials=tuple(map(str, breaks["specials"])),
            added_pairs=frozenset(map(str, breaks["added_pairs"])),
            after_newline=frozenset(str(breaks["after_newline"])),
            are_letters_free=bool(breaks["are_letters_free"]),
            is_split_at_spaces=bool(breaks["is_split_at_spaces"]),
            does_swallow_spaces=bool(breaks["does_swallow_spaces"]),
        ),
        bound=bound and TokenBound(int(bound["around"]), int(bound["factor"])),
    )


def _bounded(breaks: Breaks) -> Breaks:
    """Return no bound for a tokenizer with more added tokens than can be looked for at every turn."""
    is_small = (
        len(breaks.specials) <= MAX_SPECIALS
        and sum(map(len, breaks.specials)) <= MAX_SPECIAL_CHARS
        and len(breaks.added_pairs) <= MAX_ADDED_PAIRS
    )
    return breaks if is_small else Breaks()
