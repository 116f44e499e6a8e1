"""Computes how many tokens a text can have at most, from tokenizer.json alone: mostly one for each byte.

A token stands for at least a character of what the normalizers and pre-tokenizers leave, or for a byte of it where
bytes are tokens. So only what makes a text longer matters:

    a character that is not ASCII     NFC and NFD at most threefold, NFKC and NFKD elevenfold, lowercase twofold
    a space                           "▁", which is one token if the vocabulary has it, else three bytes
    a beginning of a text             "▁" or a space, once for every stretch between added tokens

The last is once for a whole text where every added token is longer than it: the token itself pays for what begins after
it. A tokenizer with anything else has no bound. tests/unit/test_token_bounds.py holds all this to the real library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

NORMALIZERS = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2, "StripAccents": 1, "Strip": 1, "Nmt": 1, "ByteLevel": 1}  # fmt: skip
PRE_TOKENIZERS = frozenset(
    {"ByteLevel", "Metaspace", "Split", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"}
)  # fmt: skip
MAX_FACTOR = 33  # beyond, a bound says nothing
SPACE = "▁"


@dataclass(frozen=True)
class TokenBound:
    """The most tokens that a text can have: ``around`` besides its own; a character that is not ASCII has more."""

    around: int
    factor: int

    def tokens(self, text: str) -> int:
        """Return at least as many as the text has inside a prompt; those of several texts add up."""
        if text.isascii():
            return len(text)
        size = len(text.encode("utf-8", "replace"))
        return size + (self.factor - 1) * 2 * (size - len(text))


def find_bound(tokenizer: Json, special_tokens: int) -> TokenBound | None:
    """Derive it from a tokenizer.json that the library has read; None where nothing is certain."""
    model = tokenizer["model"]
    vocab = model.get("vocab")
    normalizers = list(_parts(tokenizer.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if model.get("continuing_subword_prefix") and model.get("byte_fallback"):
        return None
    if model.get("end_of_word_suffix") and model.get("byte_fallback"):
        return None
    parts = normalizers + pre_tokenizers
    in_bytes = any(part.get("type") == "ByteLevel" for part in parts)
    has_space = not in_bytes and isinstance(vocab, dict) and SPACE in vocab
    space = 1 if has_space else None
    factor, begins = 1, 0
    for part in normalizers:
        growth = _normalizer_growth(part, space)
        if growth is None:
            return None
        factor, begins = factor * growth[0], begins + growth[1]
    for place, part in enumerate(pre_tokenizers):
        begin = _pre_tokenizer_begin(part, space)
        if begin is None or (begin and place):
            return None
        begins += begin
    if any(part.get("type") == "ByteLevel" for part in normalizers[:-1]):
        return None
    if factor > MAX_FACTOR or (in_bytes and model.get("byte_fallback")):
        return None
    if begins and not _are_longer(tokenizer.get("added_tokens") or [], begins):
        return None
    return TokenBound(special_tokens + begins, factor)


def _parts(component: Json | None, members: str) -> list[Json]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component.get(members) or [] for part in _parts(inner, members)]
    return [component]


def _normalizer_growth(part: Json, space: int | None) -> tuple[int, int] | None:
    """Return the factor by which characters beyond ASCII grow, and the bytes put before a text; None if others grow too."""
    kind = part.get("type")
    if kind in NORMALIZERS:
        return NORMALIZERS[kind], 0
    if kind == "Prepend" and part.get("prepend") == SPACE and space:
        return 1, space
    if kind != "Replace":
        return None
    pattern, content = (part.get("pattern") or {}).get("String"), part.get("content")
    if pattern == " " and content == SPACE and space:
        return 1, 0
    if isinstance(pattern, str) and isinstance(content, str) and pattern:
        return (1, 0) if len(content.encode()) <= len(pattern.encode()) else None
    return None


def _pre_tokenizer_begin(part: Json, space: int | None) -> int | None:
    kind = part.get("type")
    if kind not in PRE_TOKENIZERS:
        return None
    if kind == "ByteLevel":
        return 1 if part.get("add_prefix_space", True) else 0
    if kind == "Metaspace":
        if part.get("replacement") != SPACE or not space:
            return None
        return 0 if part.get("prepend_scheme", "always") == "never" else space
    return 0


def _are_longer(added: list[Json], begins: int) -> bool:
    """Tell whether each added token has more bytes than are put before a text, and is matched as it is written."""
    return all(
        not token.get("normalized", True) and len(str(token.get("content")).encode()) > begins
        for token in added
    )
