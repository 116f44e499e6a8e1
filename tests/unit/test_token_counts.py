"""Token counts by message are those of the whole text, for real tokenizers of every kind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guanaco_server.prompts.counting import Generations, TextsNotCounted, TokenCounter
from guanaco_server.tokenization.breaks import find_breaks
from tests.fixtures.tokenizers import KINDS, counter_of, facts_of, tokenizer_of

FRAGMENTS = [
    "\n", "\n\n", " ", "  ", "\t", "\r\n", "Sam", "Nia", ": ", ":", "hello there", "I've been", "don't", "a", "ab",
    "…", "é", "e\u0301", "\u0301", "日本語", "🦙", "\u200d", "123", "45", "/", "//", "!", "?!", "...", "<", "<START>", "####",
    "<|im_start|>", "<|im_end|>", "<|end|>", "<|mask|>", "</s>", "<s>", "[SEP]", "*smiles*", "_", "▁", "Ġ", "Ċ", "\x00", "\x85", "\u2028",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)
names = st.sampled_from(["Sam", "Nia", "Ümit", "日本", "\uff21", "ﷺ", "\ufe70", "\u0301", "🦙"])
lines = st.builds("{}: {}\n".format, names, texts)
sequences = st.lists(st.one_of(texts, lines, lines), min_size=1, max_size=8)
EXACT = [kind for kind in KINDS if kind not in ("far_reaching", "with_greedy_added_tokens")]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(sequences)
def test_exact_sum_equals_the_count_of_the_whole(kind: str, said: list[str]) -> None:
    counter = counter_of(kind)
    total = counter.sequence([counter.piece(text) for text in said])
    if total.is_exact:
        assert total.tokens == len(tokenizer_of(kind).encode("".join(said)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@example(
    ["Sam\r\n<|mask|>"]
)  # fewer tokens than its first line alone: the mask swallows the line's end
@given(sequences)
def test_a_count_is_that_of_the_whole_text(kind: str, said: list[str]) -> None:
    text = "".join(said)
    assert counter_of(kind).count(text) == len(tokenizer_of(kind).encode(text))


@pytest.mark.parametrize("kind", EXACT)
def test_an_ordinary_conversation_is_never_counted_as_a_whole(kind: str) -> None:
    counter = counter_of(kind)
    said = ["Nia's Persona: Nia keeps a lighthouse.\n####\n", "You: Hi\n<START>\n"]
    said += ["Nia: Ahoy, who is there?\n", "Sam: It is me.\n", "Nia: *waves* Well met!\n", "Nia:"]
    total = counter.sequence([counter.piece(text) for text in said])
    assert total.is_exact
    assert total.tokens == len(tokenizer_of(kind).encode("".join(said)))


def test_nothing_is_claimed_of_a_tokenizer_that_is_not_understood() -> None:
    counter = counter_of("far_reaching")
    total = counter.sequence([counter.piece(f"Sam: hi {n}\n") for n in range(3)])
    assert not total.is_exact


def test_special_tokens_are_breaks_whatever_the_tokenizer_does_besides() -> None:
    counter = counter_of("far_reaching")
    said = ["<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>assistant\nHello"]
    total = counter.sequence([counter.piece(text) for text in said])
    assert total.is_exact
    assert total.tokens == len(tokenizer_of("far_reaching").encode("".join(said)))


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": "\n"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a.b"}, "content": ""}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]+"}, "behavior": "Isolated"}},
        {"pre_tokenizer": {"type": "SomethingNew"}},
        {"model": {"type": "BPE", "vocab": {}, "dropout": 0.1}},
        {"added_tokens": [{"content": "x", "single_word": True}]},
    ],
)  # fmt: skip
def test_text_that_could_span_a_line_end_breaks_nowhere(
    changed: dict[str, object],
) -> None:
    plain = {"model": {"type": "BPE", "vocab": {}}, "added_tokens": []}
    assert find_breaks(plain).after_newline
    assert not find_breaks(plain | changed).after_newline


def test_a_token_over_a_lines_end_takes_its_letter_out() -> None:
    breaks = find_breaks({"model": {"type": "BPE", "vocab": {"aĊS": 0, "Ċ": 1, "ĊĊ": 2}}})
    assert not breaks.is_break("x\n", "Sam")
    assert breaks.is_break("x\n", "Nia")


def test_a_cache_keeps_what_is_used_and_stays_small() -> None:
    cache: Generations[int, int] = Generations(100)
    cache.keep(-1, -1, 1)
    for number in range(1_000):
        cache.keep(number, number, 1)
        assert cache.find(-1) == -1
        assert len(cache) <= 100
    assert cache.find(5) is None
    assert cache.find(999) == 999
    cache.keep(7_000, 0, 101)
    assert cache.find(7_000) is None


async def test_waiting_for_a_count_leaves_no_cycle_to_collect() -> None:
    missed: list[weakref.ref[TextsNotCounted]] = []

    class Later:
        """Counts nothing at once."""

        def counts(self, texts: Sequence[str]) -> Sequence[int]:
            raise AssertionError("a whole text is counted")

        def whole(self, text: str) -> int:
            uncounted = TextsNotCounted([text], is_whole=True)
            missed.append(weakref.ref(uncounted))
            raise uncounted

        async def count_later(self, uncounted: TextsNotCounted) -> Sequence[int]:
            return [len(text) for text in uncounted.texts]

    gc.disable()
    try:
        counter = TokenCounter(facts_of("gpt_2"), Later())
        assert await counter.counted(lambda: counter.whole("Ahoy")) == 4
        assert missed
        assert [one() for one in missed] == [None] * len(missed)
    finally:
        gc.enable()
