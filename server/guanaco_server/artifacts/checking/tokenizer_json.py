"""tokenizer.json, before the `tokenizers` library reads it in the platform's own process.

The library trusts its file: a pipeline of replacements that each double the text, padding to 10^12 tokens, or
a Unigram model of long pieces (344 bytes of memory for each byte of theirs) would take all memory. So what makes a
text longer is limited here, and so are texts, and types are checked where it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.checking.repo_json import parse_object

NAME = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64_000_000  # the largest known has 34 MB
MAX_TOKEN_ID = 10_000_000
MAX_UNIGRAM_BYTES = 4_000_000  # of all pieces: 16 each for 250,000; such a file took 1.4 GB
MAX_ADDED_CHARS = 1_000_000  # of all added tokens
MAX_PARTS = 64  # of normalizer, pre-tokenizer, decoder and post-processor each
MAX_REGEX_CHARS = 4_000  # GPT-4's has 250
MAX_GROWTH = 64  # how many times as long the replacements together may make a text
MAX_TEMPLATE = 64  # special tokens around a text
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

Json = dict[str, Any]


def check_tokenizer(data: bytes) -> int:
    """Return the number of entries (the highest id + 1). Raise CorruptConfig for a file that the library must not see."""
    if len(data) > MAX_TOKENIZER_BYTES:
        raise CorruptConfig(f"{NAME} has {len(data):,} bytes; {MAX_TOKENIZER_BYTES:,} are allowed.")
    content = parse_object(NAME, data)
    model = content.get("model")
    if not isinstance(model, dict):
        raise CorruptConfig(f"{NAME} has no model.")
    for name in COMPONENTS:
        _check_component(name, content.get(name))
    ids = [*_model_ids(model), *_added_ids(content)]
    if not all(type(number) is int and 0 <= number < MAX_TOKEN_ID for number in ids):
        raise CorruptConfig(f"{NAME} has a token whose id is no number below {MAX_TOKEN_ID:,}.")
    return max(ids, default=-1) + 1


def _model_ids(model: Json) -> list[Any]:
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return list(vocab.values())
    if isinstance(vocab, list):  # Unigram: an entry's id is its place
        _require_short_pieces(vocab)
        return list(range(len(vocab)))
    raise CorruptConfig(f"{NAME} has no vocab.")


def _added_ids(content: Json) -> list[Any]:
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise CorruptConfig(f"added_tokens in {NAME} must be a list of objects.")
    if sum(len(str(token.get("content"))) for token in added) > MAX_ADDED_CHARS:
        raise CorruptConfig(f"The added tokens in {NAME} have over {MAX_ADDED_CHARS:,} characters.")
    return [token.get("id") for token in added]


def _require_short_pieces(vocab: list[Any]) -> None:
    if not all(isinstance(entry, list) and entry and isinstance(entry[0], str) for entry in vocab):
        raise CorruptConfig(f"vocab in {NAME} must be a list of pieces with their scores.")
    if sum(4 * len(entry[0]) for entry in vocab) <= MAX_UNIGRAM_BYTES:
        return
    if sum(len(entry[0].encode("utf-8", "replace")) for entry in vocab) > MAX_UNIGRAM_BYTES:
        raise CorruptConfig(f"The pieces in {NAME} have over {MAX_UNIGRAM_BYTES:,} bytes.")


def _check_component(name: str, component: Any) -> None:
    if component is None:
        return
    if not isinstance(component, dict):
        raise CorruptConfig(f"{name} in {NAME} is not an object.")
    parts = list(_parts(component))
    if len(parts) > MAX_PARTS:
        raise CorruptConfig(f"{name} in {NAME} has more than {MAX_PARTS} parts.")
    growth = 1
    for part in parts:
        _check_regex(name, part.get("pattern"))
        _check_template(name, part)
        content = part.get("content") or part.get("prepend") or ""
        growth *= max(len(content) if isinstance(content, str) else 1, 1)
    if growth > MAX_GROWTH:
        raise CorruptConfig(
            f"{name} in {NAME} may make a text {growth:,} times as long; {MAX_GROWTH} are allowed."
        )


def _parts(component: Json) -> Iterator[Json]:
    """The component and all that are inside it; parse_object has limited the depth."""
    yield component
    for value in component.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _parts(inner)


def _check_regex(name: str, pattern: Any) -> None:
    regex = pattern.get("Regex") if isinstance(pattern, dict) else pattern
    if isinstance(regex, str) and len(regex) > MAX_REGEX_CHARS:
        raise CorruptConfig(
            f"{name} in {NAME} has a pattern of {len(regex):,} characters; {MAX_REGEX_CHARS:,} are allowed."
        )


def _check_template(name: str, part: Json) -> None:
    for field in ("single", "pair", "ids", "tokens"):
        value = part.get(field)
        if isinstance(value, list) and len(value) > MAX_TEMPLATE:
            raise CorruptConfig(
                f"{name} in {NAME} puts {len(value):,} tokens around a text; {MAX_TEMPLATE} are allowed."
            )
