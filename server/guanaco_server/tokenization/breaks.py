"""Finds where a text can be cut so that its parts are tokenized apart. It reads tokenizer.json alone.

Let a text be chunks p1 … pn. With ``count`` the tokens of a text,

    count(p1 … pn) = count(p1) + Σ (count(p[i-1] p[i]) - count(p[i-1]))

holds exactly where every p[i-1] has a *break*: a place from which the tokens to the right do not depend on what is
left of it, and the other way round but for the one character after it. Between the breaks of p[i-1] and p[i] all text
lies in p[i-1] p[i]; what is wrong at either end, where p[i-1] stands at the beginning of a text instead of within it,
is in both terms and cancels. A break is one of

    special   an added token that is matched before anything else. Whatever normalizer and pre-tokenizer
              there are, they see the text on either side apart.
    newline   "\\n" before a printable ASCII character or a letter y, where all whitespace ends a word, or for BPE. The normalizers and pre-tokenizers that are listed
              here work character by character there, or by a regex of which no match holds "\\n" followed by a
              non-space; no token of the vocabulary holds "\\n" followed by y, so no merge crosses.
    space     a space inside a chunk, for Metaspace, which splits at spaces. Models work word by word.

Besides, no added token may hold the two characters where two chunks meet. For a tokenizer with anything else nothing is claimed, and whole texts are counted. tests/unit/test_token_counts.py holds all this to the real library.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Json = dict[str, Any]

PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation)
NEWLINES = ("\n", "Ċ")  # the second is how byte-level vocabularies write it
LOCAL_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Prepend", "ByteLevel"}
)
SPACING_NORMALIZERS = LOCAL_NORMALIZERS | {"BertNormalizer", "Precompiled", "Nmt"}
SPACE_SPLITTERS = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
LOCAL_PRE_TOKENIZERS = SPACE_SPLITTERS | {"ByteLevel", "Metaspace", "Digits", "Punctuation"}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN_PATTERNS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        *(  # Llama 3; Qwen 2 and 3
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
        *(  # GPT-4o and gpt-oss; Mistral's Tekken
            rf"{_CASED}{ends}|{_UPPER}{ends}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
            for ends, digits in ((f"{_CONTRACTIONS}?", r"\p{N}{1,3}"), ("", r"\p{N}"))
        ),
        r"\p{N}{1,3}",  # DeepSeek's three, one after the other
        "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
NEWLINE_THEN_SLASH = (
    "[\\r\\n/]"  # in GPT-4o's pattern, punctuation takes newlines and slashes with it
)


@dataclass(frozen=True)
class Breaks:
    """The places where a tokenizer's text may be cut. ``after_newline`` are the characters before which a line's end is a break."""

    specials: tuple[str, ...] = ()
    added_pairs: frozenset[str] = frozenset()
    after_newline: frozenset[str] = frozenset()
    are_letters_free: bool = False  # other letters than ASCII's are as good after a line's end
    is_split_at_spaces: bool = False
    does_swallow_spaces: bool = False

    def is_break(self, left: str, right: str) -> bool:
        """Tell whether ``right``, which follows ``left``, is tokenized regardless of what is before ``left``. Neither is empty."""
        first = right[0]
        if left[-1] + first in self.added_pairs:
            return False
        if self.does_swallow_spaces and (left.isspace() or right.isspace()):
            return False
        if left.startswith(self.specials) or left.endswith(self.specials):
            return True
        if right.startswith(self.specials):
            return True
        if left[-1] == "\n" and (first in self.after_newline or self._is_free_letter(first)):
            return True
        if not self.is_split_at_spaces or " " not in left.strip():
            return False
        return not any(space + first in self.added_pairs for space in " ▁")

    @property
    def is_sure(self) -> bool:
        """True if ordinary conversations are counted exactly."""
        return bool(self.after_newline) or self.is_split_at_spaces

    def _is_free_letter(self, char: str) -> bool:
        return (
            self.are_letters_free
            and char > "\x7f"
            and char.isalpha()
            and not unicodedata.normalize("NFKC", char)[0].isspace()
        )

    def split(self, text: str) -> list[str]:
        """Return the text in chunks, most of which end where a break is."""
        if not self.is_split_at_spaces:
            return self._line_begins.split(text)
        chunks = [""]
        for line in self._line_begins.split(text):
            chunks[-1] += line
            if " " in line.strip():
                chunks.append("")
        rest = chunks.pop()
        return [*chunks[:-1], chunks[-1] + rest] if chunks else [rest]

    @cached_property
    def _line_begins(self) -> re.Pattern[str]:
        if self.is_split_at_spaces:
            return re.compile(r"(?<=\n)(?=\S)")
        if not self.after_newline:
            return re.compile(r"(?!)")
        return re.compile(rf"(?<=\n)(?=[{re.escape(''.join(sorted(self.after_newline)))}])")


def find_breaks(tokenizer: Json) -> Breaks:
    """Derive them from a tokenizer.json that the library has read."""
    added: list[Json] = tokenizer.get("added_tokens") or []
    if any(token.get("single_word") for token in added):
        return Breaks()
    contents = [str(token["content"]) for token in added]
    pairs = frozenset(_pairs(contents))
    normalizers = list(_parts(tokenizer.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    after_newline = _after_newline(tokenizer["model"], normalizers, pre_tokenizers)
    return Breaks(
        specials=_specials(added),
        added_pairs=pairs,
        after_newline=after_newline - {pair[1] for pair in pairs if pair[0] in "\n ▁"},
        are_letters_free=bool(after_newline) and _are_letters_free(tokenizer["model"]),
        is_split_at_spaces=not after_newline and _is_split_at_spaces(normalizers, pre_tokenizers),
        does_swallow_spaces=any(token.get("lstrip") or token.get("rstrip") for token in added),
    )


def _pairs(contents: Iterable[str]) -> Iterator[str]:
    for content in contents:
        for text in {content, content.lower()}:
            yield from (text[i : i + 2] for i in range(len(text) - 1))


def _specials(added: list[Json]) -> tuple[str, ...]:
    """Choose those that are found wherever they stand: none of the others can begin before them and reach into them."""
    inner = {char for token in added for char in str(token["content"])[1:]}
    return tuple(
        str(token["content"])
        for token in added
        if not token.get("normalized", True)
        and token["content"]
        and token["content"][0] not in inner
    )


def _parts(component: Json | None, members: str) -> Iterator[Json]:
    if component is None:
        return
    if component.get("type") == "Sequence":
        for member in component.get(members) or []:
            yield from _parts(member, members)
    else:
        yield component


def _after_newline(
    model: Json, normalizers: list[Json], pre_tokenizers: list[Json]
) -> frozenset[str]:
    if not all(_is_local(part) for part in pre_tokenizers):
        return frozenset()
    if any(_type(part) in SPACE_SPLITTERS for part in pre_tokenizers):
        if _is_in_bytes(normalizers + pre_tokenizers):
            return frozenset()
        return PRINTABLE if all(_is_spacing(part) for part in normalizers) else frozenset()
    if not _is_plain_bpe(model):
        return frozenset()
    replaced = {_replaced_char(part) for part in normalizers if part.get("type") == "Replace"}
    if None in replaced or "\n" in replaced:
        return frozenset()
    if not all(_type(part) in LOCAL_NORMALIZERS | {"Replace"} for part in normalizers):
        return frozenset()
    taken = {char for char in _followers_of_newline(model["vocab"])} | replaced
    if any(NEWLINE_THEN_SLASH in _regex(part) for part in pre_tokenizers):
        taken.add("/")
    if model.get("fuse_unk"):
        taken |= {y for y in PRINTABLE if not {y, y.lower()} <= model["vocab"].keys()}
    return frozenset(y for y in PRINTABLE if not {y, y.lower()} & taken)


def _are_letters_free(model: Json) -> bool:
    is_ascii = all(char in PRINTABLE for char in _followers_of_newline(model["vocab"]))
    return is_ascii and not (model.get("fuse_unk") and not model.get("byte_fallback"))


def _is_plain_bpe(model: Json) -> bool:
    return (
        _type(model) == "BPE"
        and isinstance(model.get("vocab"), dict)
        and not model.get("dropout")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
    )


def _followers_of_newline(vocab: Iterable[Any]) -> Iterator[str]:
    for token in vocab:
        if not isinstance(
            token, str
        ):  # Unigram's are pairs; what is said here does not rest on them
            continue
        for newline in NEWLINES:
            if newline in token:
                yield from (after[0] for after in token.split(newline)[1:] if after)


def _is_split_at_spaces(normalizers: list[Json], pre_tokenizers: list[Json]) -> bool:
    return (
        not _is_in_bytes(normalizers + pre_tokenizers)
        and all(_is_spacing(part) for part in normalizers)
        and all(_is_local(part) for part in pre_tokenizers)
        and any(
            _type(part) == "Metaspace" and part.get("split", True) is True
            for part in pre_tokenizers
        )
    )


def _is_in_bytes(parts: list[Json]) -> bool:
    """Tell whether a part may rewrite whitespace before the text is split at it."""
    return any(_type(part) == "ByteLevel" for part in parts)


def _is_spacing(normalizer: Json) -> bool:
    """Tell whether a normalizer works character by character (except runs of spaces) and keeps spaces apart from letters."""
    if _type(normalizer) != "Replace":
        return _type(normalizer) in SPACING_NORMALIZERS
    return normalizer.get("pattern") == {"Regex": " {2,}"} or _replaced_char(normalizer) == " "


def _is_local(pre_tokenizer: Json) -> bool:
    if _type(pre_tokenizer) != "Split":
        return _type(pre_tokenizer) in LOCAL_PRE_TOKENIZERS
    pattern = pre_tokenizer.get("pattern") or {}
    if pattern.get("String") == " ":
        return True
    return _regex(pre_tokenizer) in KNOWN_PATTERNS and pre_tokenizer.get("behavior") in (
        "Isolated",
        "Removed",
    )


def _regex(pre_tokenizer: Json) -> str:
    pattern = pre_tokenizer.get("pattern")
    return str(pattern.get("Regex", "")) if isinstance(pattern, dict) else ""


def _replaced_char(normalizer: Json) -> str | None:
    """Return the one character that is replaced, wherever it stands."""
    text = (normalizer.get("pattern") or {}).get("String")
    return text if isinstance(text, str) and len(text) == 1 else None


def _type(part: Json) -> str:
    return str(part.get("type"))
