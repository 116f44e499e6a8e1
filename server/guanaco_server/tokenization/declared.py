"""Limits what a tokenizer.json may declare, before the `tokenizers` library reads it. Runs in the tokenizer's own process.

The library trusts its file: a pipeline of replacements that each double the text, a table that maps one character to
megabytes, padding to 10^12 tokens, or a Unigram model of long pieces (344 bytes of memory for each byte of theirs)
would take all memory; a word of any length, or a repetition within a repetition, all time. What makes a text longer or a
word dearer is limited here, so that an honest developer reads in one sentence what cannot be served. What no limit
foresees is ended by the limits of the process.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from guanaco_server.formats.json_objects import parse_json_object
from guanaco_server.tokenization.breaks import KNOWN_PATTERNS

NAME = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64_000_000  # the largest known has 34 MB
MAX_TOKEN_ID = 10_000_000
MAX_UNIGRAM_BYTES = 4_000_000  # of all pieces: 16 each for 250,000; such a file took 1.4 GB
MAX_UNIGRAM_PIECE_BYTES = 1_000  # each place of a text is compared with it
MAX_ADDED_CHARS = 1_000_000  # of all added tokens
MAX_PARTS = 64  # of normalizer, pre-tokenizer, decoder and post-processor each
MAX_REGEX_CHARS = 4_000  # GPT-4's has 250
MAX_REPEATS = 1_000  # of a counted repetition in a pattern; the usual ones have 3
MAX_GROWTH = 64  # how many times as long the replacements together may make a text
MAX_TEMPLATE = 64  # special tokens around a text
MAX_AFFIX_CHARS = 16  # BERT's "##" and GPT's "</w>" have 2 and 4
MAX_WORD_CHARS = 256  # WordPiece compares all parts of a word; BERT's limit is 100
MAX_CHARSMAP_BYTES = 2_000_000  # sentencepiece's nmt_nfkc has 240 kB
MAX_MAPPED_BYTES = 64  # what one character becomes; 33 in nmt_nfkc
CHARSMAP_SHARE = (
    8  # a table that maps to 33 bytes counts as growth by 5: few characters grow so much
)
MEMORY_BYTES = 700_000_000  # of the process: Gemma's 262,000 words and 515,000 merges take 350 MB while they are read
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")

Json = dict[str, Any]


class Refused(ValueError):
    """A tokenizer cannot be served; the text is one sentence."""


def read_tokenizer(data: bytes) -> Json:
    """Return the file's content, within all limits. Raise Refused for a file that the library must not see."""
    if len(data) > MAX_TOKENIZER_BYTES:
        raise Refused(f"{NAME} has {len(data):,} bytes; {MAX_TOKENIZER_BYTES:,} are allowed.")
    try:
        content = parse_json_object(NAME, data)
    except ValueError as error:
        raise Refused(str(error)) from None
    model = content.get("model")
    if not isinstance(model, dict):
        raise Refused(f"{NAME} has no model.")
    _check_model(model)
    for name in COMPONENTS:
        _check_component(name, content.get(name))
    count_entries(content)
    return content


def count_entries(content: Json) -> int:
    """Return the highest id + 1. Raise Refused for what is no id."""
    ids = [*_model_ids(content["model"]), *_added_ids(content)]
    if not all(type(number) is int and 0 <= number < MAX_TOKEN_ID for number in ids):
        raise Refused(f"{NAME} has a token whose id is no number below {MAX_TOKEN_ID:,}.")
    return max(ids, default=-1) + 1


def unusual_characters(content: Json) -> frozenset[str]:
    """Return the characters that occur in patterns other than those of well-known tokenizers."""
    parts = [p for name in COMPONENTS for p in _parts(content.get(name) or {})]
    patterns = [(part.get("pattern") or {}) for part in parts]
    regexes = [p["Regex"] for p in patterns if isinstance(p, dict) and "Regex" in p]
    return frozenset("".join(regex for regex in regexes if regex not in KNOWN_PATTERNS))


def _check_model(model: Json) -> None:
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, (int, float)) and longest > MAX_WORD_CHARS:
        raise Refused(
            f"max_input_chars_per_word in {NAME} is {longest:,}; {MAX_WORD_CHARS} are allowed."
        )
    for name in AFFIXES:
        affix = model.get(name)
        if isinstance(affix, str) and len(affix) > MAX_AFFIX_CHARS:
            raise Refused(
                f"{name} in {NAME} has {len(affix):,} characters; {MAX_AFFIX_CHARS} are allowed."
            )


def _model_ids(model: Json) -> list[Any]:
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return list(vocab.values())
    if isinstance(vocab, list):  # Unigram: an entry's id is its place
        _require_short_pieces(vocab)
        return list(range(len(vocab)))
    raise Refused(f"{NAME} has no vocab.")


def _added_ids(content: Json) -> list[Any]:
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise Refused(f"added_tokens in {NAME} must be a list of objects.")
    if sum(len(str(token.get("content"))) for token in added) > MAX_ADDED_CHARS:
        raise Refused(f"The added tokens in {NAME} have over {MAX_ADDED_CHARS:,} characters.")
    return [token.get("id") for token in added]


def _require_short_pieces(vocab: list[Any]) -> None:
    if not all(isinstance(entry, list) and entry and isinstance(entry[0], str) for entry in vocab):
        raise Refused(f"vocab in {NAME} must be a list of pieces with their scores.")
    sizes = [len(entry[0].encode("utf-8", "replace")) for entry in vocab]
    if sum(sizes) > MAX_UNIGRAM_BYTES:
        raise Refused(f"The pieces in {NAME} have over {MAX_UNIGRAM_BYTES:,} bytes.")
    if (longest := max(sizes, default=0)) > MAX_UNIGRAM_PIECE_BYTES:
        raise Refused(
            f"A piece in {NAME} has {longest:,} bytes; {MAX_UNIGRAM_PIECE_BYTES:,} are allowed."
        )


def _check_component(name: str, component: Any) -> None:
    if component is None:
        return
    if not isinstance(component, dict):
        raise Refused(f"{name} in {NAME} is not an object.")
    parts = list(_parts(component))
    if len(parts) > MAX_PARTS:
        raise Refused(f"{name} in {NAME} has more than {MAX_PARTS} parts.")
    growth = 1
    for part in parts:
        _check_regex(name, part.get("pattern"))
        _check_template(name, part)
        growth *= _growth(part)
    if growth > MAX_GROWTH:
        raise Refused(
            f"{name} in {NAME} may make a text {growth:,} times as long; {MAX_GROWTH} are allowed."
        )


def _growth(part: Json) -> int:
    if isinstance(part.get("precompiled_charsmap"), str):
        return max(1, -(-longest_mapped(part["precompiled_charsmap"]) // CHARSMAP_SHARE))
    content = part.get("content") or part.get("prepend") or ""
    return max(len(content) if isinstance(content, str) else 1, 1)


def longest_mapped(charsmap: str) -> int:
    """Return how many bytes a character becomes at most. Raise Refused for more than may be.

    The table is the size of a trie (4 bytes), the trie, and what it points into: texts that end with a zero.
    """
    if len(charsmap) > MAX_CHARSMAP_BYTES * 4 // 3 + 4:
        raise Refused(f"precompiled_charsmap in {NAME} has over {MAX_CHARSMAP_BYTES:,} bytes.")
    try:
        table = base64.b64decode(charsmap, validate=True)
    except ValueError:
        raise Refused(f"precompiled_charsmap in {NAME} is not base64.") from None
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    longest = max(map(len, texts.split(b"\0")))
    if longest > MAX_MAPPED_BYTES:
        raise Refused(
            f"precompiled_charsmap in {NAME} maps a character to {longest:,} bytes; {MAX_MAPPED_BYTES} are allowed."
        )
    return longest


def _parts(component: Json) -> Iterator[Json]:
    """Yield the component and all that are inside it; parse_json_object has limited the depth."""
    yield component
    for value in component.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _parts(inner)


def _check_regex(name: str, pattern: Any) -> None:
    regex = pattern.get("Regex") if isinstance(pattern, dict) else pattern
    if not isinstance(regex, str):
        return
    if len(regex) > MAX_REGEX_CHARS:
        raise Refused(
            f"{name} in {NAME} has a pattern of {len(regex):,} characters; {MAX_REGEX_CHARS:,} are allowed."
        )
    if not isinstance(pattern, dict):
        return
    counts = re.findall(r"(?<=[{,])\d+(?=[,}])", regex)
    if any(len(count) > len(str(MAX_REPEATS)) or int(count) > MAX_REPEATS for count in counts):
        raise Refused(f"{name} in {NAME} has a pattern that repeats over {MAX_REPEATS:,} times.")
    if has_nested_repetition(regex):
        raise Refused(
            f"{name} in {NAME} has a pattern with a repetition inside a repeated group, which may take for ever."
        )


def has_nested_repetition(regex: str) -> bool:
    """Tell whether a group that is repeated without bound contains an unbounded repetition, as in ``(a+)+``."""
    plain = re.sub(
        r"\\(?:[pP]\{[^}]*\}|.)", "x", regex, flags=re.DOTALL
    )  # escapes are single characters
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)  # and so are classes
    open_groups = [False]
    for place, char in enumerate(plain):
        if char == "(":
            open_groups.append(False)
        elif char == ")" and len(open_groups) > 1:
            repeats = open_groups.pop()
            if repeats and _is_unbounded(plain, place + 1):
                return True
            open_groups[-1] |= repeats
        elif _is_unbounded(plain, place) and plain[place - 1 : place] not in ("", "("):
            open_groups[-1] = True
    return False


def _is_unbounded(regex: str, place: int) -> bool:
    return bool(re.match(r"[*+]|\{\d*,\}", regex[place : place + 24]))


def _check_template(name: str, part: Json) -> None:
    for field in ("single", "pair", "ids", "tokens"):
        value = part.get(field)
        if isinstance(value, list) and len(value) > MAX_TEMPLATE:
            raise Refused(
                f"{name} in {NAME} puts {len(value):,} tokens around a text; {MAX_TEMPLATE} are allowed."
            )
