"""No text has more tokens than its bound, by the real library; and a prompt within it is the one that counting makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.chat import Bot, Sender
from guanaco.prompts import PromptFormatter
from guanaco_server.prompts.layouts import Utterance, formatter_layout
from guanaco_server.prompts.rendering import render, render_uncounted
from guanaco_server.tokenization.bounds import find_bound
from tests.fixtures.tokenizers import KINDS, counter_of, facts_of, tokenizer_of

BOUNDED = (
    "gpt_2",
    "gpt_2_with_prefix",
    "llama_3",
    "gpt_4o",
    "llama_2",
    "word_level",
    "far_reaching",
)
PIECES = ["a", " ", "\n", "<s>", "<|im_end|>", "é", "e\u0301", "日本", "🦙", "\ufdfa", "\u0390", "\u1f82", "▁", "Ġ", "\x00", "İ"]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60)


def test_most_kinds_have_a_bound() -> None:
    assert {kind for kind in KINDS if facts_of(kind).bound} >= set(BOUNDED)


@pytest.mark.parametrize("kind", BOUNDED)
@settings(max_examples=100, deadline=None)
@given(st.lists(texts, max_size=4))
def test_a_text_has_no_more_tokens_than_its_bound(kind: str, said: list[str]) -> None:
    bound = facts_of(kind).bound
    assert bound is not None
    whole = "".join(said).encode("utf-8", "replace").decode()
    most = bound.around + sum(bound.tokens(text) for text in said)
    assert len(tokenizer_of(kind).encode(whole)) <= most


@pytest.mark.parametrize("kind", BOUNDED)
@settings(max_examples=20, deadline=None)
@given(said=st.lists(texts, min_size=1, max_size=6), budget=st.integers(60, 400))
def test_prompt_within_its_bound_equals_the_counted_one(
    kind: str, said: list[str], budget: int
) -> None:
    counter = counter_of(kind)
    senders = (Sender.USER, Sender.BOT)
    turns = [Utterance(senders[n % 2], text) for n, text in enumerate(said)]
    layout = formatter_layout(PromptFormatter(), Bot(name="Nia", memory="M"), "Sam")
    uncounted = render_uncounted(layout, turns, counter, budget)
    if uncounted is not None:
        assert uncounted == render(layout, turns, counter, budget)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "Prepend", "prepend": "aaaa"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}},
        {"pre_tokenizer": {"type": "SomethingNew"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": True}]}},
    ],
)  # fmt: skip
def test_what_may_make_ascii_longer_has_no_bound(changes: dict[str, Any]) -> None:
    plain = json.loads(tokenizer_of("word_level").to_str())
    assert find_bound(plain, 0) is not None
    assert find_bound(plain | changes, 0) is None
