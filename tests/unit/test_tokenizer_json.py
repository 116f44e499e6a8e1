"""tokenizer.json from strangers, which is limited before the library reads it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from guanaco_server.demo.tiny_repo import VOCABULARY, make_tiny_repo
from guanaco_server.tokenization.breaks import KNOWN_PATTERNS
from guanaco_server.tokenization.child import load
from guanaco_server.tokenization.declared import (
    MAX_TOKENIZER_BYTES,
    Refused,
    count_entries,
    has_nested_repetition,
    read_tokenizer,
)

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
UNIGRAM = {"type": "Unigram", "unk_id": 0}
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
PADDING = {
    "strategy": {"Fixed": 10**12},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}
TRUNCATION = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}


def tokenizer(**changes: Any) -> bytes:
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": WORDS,
    }
    return json.dumps(content | changes).encode()


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def charsmap(text: bytes) -> dict[str, Any]:
    """A table with an empty trie that maps to this text."""
    table = base64.b64encode(bytes(4) + b"ok\0" + text + b"\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(levels):
        inner = sequence(inner)
    return inner


def test_the_demos_tokenizer_passes_and_its_entries_are_counted(tmp_path: Path) -> None:
    make_tiny_repo(tmp_path)
    data = (tmp_path / "tokenizer.json").read_bytes()
    tokenizer, facts = load(data)
    assert facts.entries == VOCABULARY
    assert tokenizer.count({"texts": ["Hello there."], "wholes": []})["counts"][0] > 1


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 2),
        ({"added_tokens": [{"id": 7, "content": "<x>"}]}, 8),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]] * 5}}, 5),
        ({"model": WORDS | {"vocab": {}}}, 0),
    ],
)
def test_entries_are_counted_up_to_the_highest_id(changes: Any, count: int) -> None:
    assert count_entries(read_tokenizer(tokenizer(**changes))) == count


@pytest.mark.parametrize("changes", [{"padding": PADDING}, {"truncation": TRUNCATION}])
def test_padding_and_truncation_do_not_change_the_count(changes: Any) -> None:
    loaded, _ = load(tokenizer(**changes))
    assert loaded.count({"texts": ["a b a"], "wholes": []})["counts"] == [3]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no model"),
        (b" " * (MAX_TOKENIZER_BYTES + 1), "64,000,001 bytes; 64,000,000"),
        (b'{"model": ' * 65 + b"0" + b"}" * 65, "more than 64 levels"),
        (tokenizer(normalizer=nested(40)), "more than 64 levels"),
        (tokenizer(model=[]), "no model"),
        (tokenizer(model={"vocab": 5}), "no vocab"),
        (tokenizer(model={"vocab": {"a": "x"}}), "id is no number"),
        (tokenizer(model={"vocab": {"a": True}}), "id is no number"),
        (tokenizer(model={"vocab": {"a": -1}}), "id is no number"),
        (tokenizer(model={"vocab": {"a": 2**40}}), "id is no number below 10,000,000"),
        (tokenizer(added_tokens={}), "cannot be read"),
        (b'{"model": [' + b"0," * 4_000_000 + b"0]}", "more than 4,000,000 values"),
        (tokenizer(model=UNIGRAM | {"vocab": [["ab" * 1_000_001, 0.0], ["cd" * 1_000_000, 0.0]]}), "over 4,000,000 bytes"),
        (tokenizer(model=UNIGRAM | {"vocab": [5]}), "pieces with their scores"),
        (tokenizer(model=UNIGRAM | {"vocab": [["a", "b"]]}), "cannot be read"),
        (tokenizer(added_tokens=[{"id": 3, "content": "x" * 1_000_001}]), "over 1,000,000 characters"),
        (tokenizer(added_tokens={"a": 1}), "must be a list of objects"),
        (tokenizer(added_tokens=[1]), "must be a list of objects"),
        (tokenizer(added_tokens=[{"content": "x"}]), "id is no number"),
        (tokenizer(normalizer=[]), "normalizer in tokenizer.json is not an object"),
        (tokenizer(normalizer=sequence(*[DOUBLING] * 20)), "times as long; 64 are allowed"),
        (tokenizer(normalizer=DOUBLING | {"content": "a" * 100}), "100 times as long"),
        (tokenizer(normalizer={"type": "Prepend", "prepend": "a" * 100}), "100 times as long"),
        (tokenizer(normalizer=sequence(*[{"type": "NFKD"}] * 70)), "more than 64 parts"),
        (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a" * 4_001}}), "4,001 characters"),
        (tokenizer(post_processor={"type": "TemplateProcessing", "single": [{}] * 65}), "more than 64 parts"),
        (tokenizer(post_processor={"special_tokens": {"a": {"ids": [1] * 65}}}), "65 tokens around a text"),
        (tokenizer(model={"vocab": {"a": 0}, "type": "Nonsense"}), "cannot be read"),
        (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}), "cannot be read"),
        (tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AA!A"}), "is not base64"),
        (tokenizer(normalizer=charsmap(b"x" * 65)), "maps a character to 65 bytes; 64"),
        (tokenizer(normalizer=sequence(charsmap(b"x" * 33), DOUBLING, *[DOUBLING] * 4)), "160 times as long"),
        (tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "A" * 3_000_000}), "over 2,000,000 bytes"),
        (tokenizer(model=WORDS | {"type": "WordPiece", "max_input_chars_per_word": 10**9}), "is 1,000,000,000; 256"),
        (tokenizer(model=WORDS | {"continuing_subword_prefix": "#" * 17}), "continuing_subword_prefix in tokenizer.json has 17"),
        (tokenizer(model=WORDS | {"end_of_word_suffix": "#" * 17}), "end_of_word_suffix in tokenizer.json has 17"),
        (tokenizer(model=UNIGRAM | {"vocab": [["a" * 1_001, 0.0]]}), "A piece in tokenizer.json has 1,001 bytes"),
        (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a{2,100001}"}}), "repeats over 1,000 times"),
        (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?:x+x+)+y"}}), "repetition inside a repeated group"),
    ],
)  # fmt: skip
def test_a_hostile_tokenizer_is_refused_with_one_sentence(data: bytes, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        load(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "pattern", [*sorted(KNOWN_PATTERNS), r"(a)+|b+(c)*", r"[(a+)+]+", r"(\(a\+)+", "(?:a{2,3}){4}"]
)
def test_a_usual_pattern_repeats_no_repetition(pattern: str) -> None:
    assert not has_nested_repetition(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(?:a*b)*", "((a{3,}))+", r"(\p{L}+|\s)+x", "(a|[b]+){2,}"]
)
def test_a_repeated_repetition_is_found(pattern: str) -> None:
    assert has_nested_repetition(pattern)
