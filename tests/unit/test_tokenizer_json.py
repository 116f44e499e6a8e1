"""tokenizer.json from strangers, which the platform reads in its own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.checking.tokenizer_json import MAX_TOKENIZER_BYTES, check_tokenizer
from guanaco_server.demo.tiny_repo import VOCABULARY, make_tiny_repo
from guanaco_server.prompts.counting import load_tokenizer

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


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(levels):
        inner = sequence(inner)
    return inner


def test_the_demos_tokenizer_passes_and_its_entries_are_counted(tmp_path: Path) -> None:
    make_tiny_repo(tmp_path)
    data = (tmp_path / "tokenizer.json").read_bytes()
    assert check_tokenizer(data) == VOCABULARY
    assert len(load_tokenizer(data).encode("Hello there.").ids) > 1


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
    assert check_tokenizer(tokenizer(**changes)) == count


@pytest.mark.parametrize("changes", [{"padding": PADDING}, {"truncation": TRUNCATION}])
def test_padding_and_truncation_do_not_change_the_count(changes: Any) -> None:
    assert len(load_tokenizer(tokenizer(**changes)).encode("a b a").ids) == 3


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
        (tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "cannot be read"),
    ],
)  # fmt: skip
def test_a_hostile_tokenizer_is_refused_with_one_sentence(data: bytes, says: str) -> None:
    with pytest.raises(CorruptConfig, match=says) as refused:
        load_tokenizer(data)
    assert "\n" not in str(refused.value)
