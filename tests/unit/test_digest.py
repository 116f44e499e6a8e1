"""Summaries by rule: which sentences are kept."""

from __future__ import annotations

from guanaco.chat import Sender
from guanaco_server.chat.memory.digest import digest
from guanaco_server.lore.activation import tokens
from guanaco_server.prompts.layouts import Utterance

FACT = "My ferret is called Quillon."


def talk(*said: str) -> list[Utterance]:
    return [
        Utterance(Sender.BOT if place % 2 else Sender.USER, text, position=place + 1)
        for place, text in enumerate(said)
    ]


def test_a_fact_is_kept_before_small_talk() -> None:
    filler = ["It was a quiet evening by the river.", "The wind went on and on."] * 40
    said = digest("", talk(FACT, *filler), "Ada", 20)
    assert FACT in said
    assert tokens(said) <= 20


def test_who_said_it_is_told() -> None:
    found = digest("", talk("I live in Bergen now.", "My library has 900 books."), "Ada", 60)
    assert found == "The user: I live in Bergen now.\nAda: My library has 900 books."


def test_the_summary_before_goes_on() -> None:
    before = digest("", talk(FACT), "Ada", 60)
    found = digest(before, talk("I work as a geologist."), "Ada", 60)
    assert found == f"The user: {FACT} I work as a geologist."


def test_a_sentence_is_told_once() -> None:
    assert digest("", talk(FACT, "Oh, does it?", FACT), "Ada", 60).count(FACT) == 1


def test_a_text_of_an_app_without_a_speaker_is_kept() -> None:
    assert digest("Kim moved to Oslo in May.", [], "Ada", 60) == "Kim moved to Oslo in May."


def test_nothing_comes_of_nothing() -> None:
    assert digest("", talk("Hm.", "…", "?!"), "Ada", 60) == ""


def test_text_without_spaces_is_kept_too() -> None:
    said = "我的猫叫小黑。我住在上海。"  # my cat is called Xiao Hei; I live in Shanghai
    assert "小黑" in digest("", talk(said), "Ada", 60)


def test_of_a_very_long_conversation_the_newest_part_is_read() -> None:
    old, new = "My stoat is called Ermintrude.", FACT
    filler = ["so it went on " * 280] * 200
    found = digest("", talk(old, *filler, new), "Ada", 40)
    assert new in found
    assert old not in found
