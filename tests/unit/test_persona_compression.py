"""Shortening a persona by rule, and the share of its facts that is kept."""

from __future__ import annotations

import pytest

from guanaco_server.chat.personas.compression import cut, extract, facts, kept_share, sentences

MARLOWE = """Captain Marlowe steers the sky-ship Thistle, built in 1887 at Gullrock. She is brave. She is very brave and was never afraid.
Everybody says that she is brave, and she says that too. She likes the weather. The weather is something that she likes.
Marlowe lost her brother Edmund in the storm of 1890. She keeps his compass in her left pocket. Her lucky number is 9.
She fears geese."""


def sizes(parts: list[str]) -> list[int]:
    return [len(part.split()) for part in parts]


@pytest.mark.parametrize(
    "text", [MARLOWE, "", "no end", "One.\n\n\nTwo!  (Three?) “Four.” …", "猫。犬!"]
)
def test_sentences_joined_are_the_text(text: str) -> None:
    assert "".join(sentences(text)) == text


def test_names_and_numbers_weigh_more_than_words() -> None:
    found = facts("Today Marlowe met Edmund in 1890 at the harbour.")
    assert found["edmund"] == found["1890"] == 3.0
    assert found["harbour"] == found["today"] == 1.0
    assert "the" not in found


@pytest.mark.parametrize("budget", [25, 35, 50])
def test_rule_keeps_more_facts_than_the_cut_in_equal_tokens(budget: int) -> None:
    parts = sentences(MARLOWE)
    by_cut, by_rule = cut(parts, sizes(parts), budget), extract(parts, sizes(parts), budget)
    assert len(by_rule.split()) <= budget
    assert len(by_cut.split()) <= budget
    assert kept_share(MARLOWE, by_rule) > kept_share(MARLOWE, by_cut)
    assert by_rule == extract(parts, sizes(parts), budget)


def test_sentences_that_add_nothing_are_dropped_first() -> None:
    parts = sentences(MARLOWE)
    kept = extract(parts, sizes(parts), 48)
    assert "1887" in kept
    assert "Edmund" in kept
    assert kept.count("weather") <= 1
    places = [kept.find(name) for name in ("Thistle", "Edmund", "9.")]
    assert places == sorted(places), "in the order of the original"


def test_fitting_persona_loses_only_repetitions() -> None:
    parts = sentences(MARLOWE)
    assert kept_share(MARLOWE, extract(parts, sizes(parts), 1_000)) == 1.0
    assert cut(parts, sizes(parts), 1_000) == MARLOWE


def test_a_sentence_longer_than_the_budget_leaves_nothing() -> None:
    assert cut(["lamp " * 99], [99], 50) == extract(["lamp " * 99], [99], 50) == ""


def test_text_without_spaces_has_facts_too() -> None:
    original = "船長は空を飛ぶ。鵞鳥を恐れる。"
    assert 0.0 < kept_share(original, "船長は空を飛ぶ。") < 1.0
