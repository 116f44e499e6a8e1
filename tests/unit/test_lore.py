"""Tests which entries of a lorebook are told, and which keys are refused."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import InvalidInput
from guanaco.lore import Lorebook, LoreEntry
from guanaco_server.lore.activation import EPOCH_MESSAGES, require_usable, takes_long, triggered
from guanaco_server.lore.mentions import mentioned
from guanaco_server.lore.patterns import BYTES_BESIDES, MAX_WORK, KeptPatterns, compiled
from guanaco_server.prompts.history import lore
from guanaco_server.prompts.layouts import Utterance
from tests.fixtures.hostile_texts import BOOKS, SAID


def entry(content: str, *keys: str, **more: object) -> LoreEntry:
    return LoreEntry.model_validate({"content": content, "keys": keys, **more})


def told(said: str, *entries: LoreEntry, **more: object) -> list[str]:
    book = Lorebook.model_validate({"entries": entries, **more})
    return [book.entries[place].content for place in triggered(book, [said], ())]


@pytest.mark.parametrize(
    ("key", "said", "is_told"),
    [
        ("goose", "A Goose!", True),
        ("goose", "The mongoose ran.", False),
        ("goose", "mongoose, then a goose", True),
        ("sky ship", "the sky ship sails", True),
        ("龍", "这是龍的家", True),
        ("c++", "I write c++ daily", True),
        (" ", "a b", False),
        ("sky ship", "the sky shipyard", False),
        ("a  b", "a b", False),
        ("STRASSE", "in der Straße", True),
        ("龍の", "これは龍の家", True),
    ],
)
def test_a_key_is_found_as_whole_words(key: str, said: str, is_told: bool) -> None:
    assert told(said, entry("Fact.", key)) == (["Fact."] if is_told else [])


def test_case_matters_where_the_entry_says_so() -> None:
    assert told("a goose", entry("Fact.", "Goose", is_case_sensitive=True)) == []
    assert told("a Goose", entry("Fact.", "Goose", is_case_sensitive=True)) == ["Fact."]


def test_secondary_keys_must_be_said_too() -> None:
    one = entry("Fact.", "goose", secondary_keys=("dock",))
    assert told("a goose", one) == []
    assert told("a goose on the dock", one) == ["Fact."]


def test_regular_expressions_are_searched() -> None:
    one = entry("Fact.", "/drag(on|ons)\\b.*lair/i", is_regex=True)
    assert told("Dragons have a lair", one) == ["Fact."]
    assert told("dragonfly lair", one) == []


@pytest.mark.parametrize(
    "key",
    ["(a+)+b", "(a|a)*b", "a.*b.*c", r"(x)\1", "(?=a)b", "a{1000000}", "[", "(((a{40}){40}){40})"],
)
def test_potentially_slow_key_is_refused_in_a_sentence(key: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be used: .*\.$"):
        require_usable(Lorebook(entries=(entry("Fact.", key, is_regex=True),)))


@pytest.mark.parametrize(
    ("key", "work"),
    [
        ("[abc]", 3),
        ("[abcdefghij]{1,20}x", 221),
        ("fox", 3),
        ("fo?x", 5),
        ("(fox|dog)s", 9),
        ("a{2,}b", 100),
        ("dragon.*lair", 261),
    ],
)
def test_an_expressions_steps_are_reckoned(key: str, work: int) -> None:
    assert compiled(key, False).work == work <= MAX_WORK


PIECES = (
    *"abA0 -_.^$|()*+?{},!=<>#]",
    *(
        r"\d",
        r"\W",
        r"\b",
        r"\A",
        r"\n",
        r"\x41",
        r"\0",
        r"\101",
        r"\.",
        r"\N{EM DASH}",
        "{2}",
        "{1,3}",
        "{,2}",
        "{2,}",
    ),
    *(
        "(?:",
        "(?i:",
        "(?-i:",
        "(?P<n>",
        "(?#c)",
        "(?i)",
        "[a-c]",
        "[^a]",
        r"[^\d]",
        r"[\w-]",
        "[]a]",
        "[^]]",
    ),
    *("(a|b)", "(ab|ac)", "(foo|bar)", "a{", "*?", "龍"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.text("abA0 -_.{},fo\n\0龍", max_size=20))
@settings(deadline=None, max_examples=300)
def test_an_expression_means_what_it_means_to_python(pieces: list[str], text: str) -> None:
    """Within the repetitions that are allowed; a text of 20 characters reaches none of their ends."""
    key = "".join(pieces)
    try:
        expected = re.compile(key).search(text)
    except re.error:
        with pytest.raises(InvalidInput, match=r"it is not a regular expression|not possible here"):
            compiled(key, True)
        return
    try:
        found = compiled(key, True).compiled.search(text)
    except InvalidInput:  # it could take too long, or refers back
        return
    assert (found and found.span()) == (expected and expected.span())


def test_groups_of_a_key_keep_nothing() -> None:
    """Python saves what each group has matched at every repetition, which no count of steps shows."""
    key = "(" + "()" * 80 + "(a?)){9}c"
    assert compiled(f"(?P<word>{key})", True).compiled.groups == 0


def test_spaces_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="it is not a regular expression"):
        compiled("(?x) goose", True)


def test_repetition_without_an_end_reaches_fifty_times() -> None:
    pattern = compiled("a.*b", False).compiled
    assert pattern.search("a" + "x" * 50 + "b")
    assert not pattern.search("a" + "x" * 51 + "b")


def test_many_expressions_of_one_book_are_refused_together() -> None:
    one = entry("Fact.", *(f"goose{n}.*dock{n}" for n in range(20)), is_regex=True)
    require_usable(Lorebook(entries=(one,)))
    with pytest.raises(InvalidInput, match="together could take too long"):
        require_usable(Lorebook(entries=(one, one, one)))


@pytest.mark.parametrize(
    "key", ["[\u0100-\uffff]" * 40, "/[^\u0100-\uffff]/i", "[\u4e00-\u9fa5]{1,9}" * 3, "(?:[\u0100-\uf000]|x)y"]
)  # fmt: skip
def test_sets_of_very_many_characters_are_not_compiled(key: str) -> None:
    with pytest.raises(InvalidInput, match="its sets name too many characters"):
        compiled(key, False)


def test_sets_of_one_book_are_refused_together() -> None:
    chinese = [entry("Fact.", f"[\u4e00-\u9fa5]{n}", is_regex=True) for n in range(9)]
    require_usable(Lorebook(entries=(*chinese,)))
    with pytest.raises(InvalidInput, match="name too many characters together"):
        require_usable(
            Lorebook(entries=(*chinese, entry("Fact.", "[\u4e00-\u9fa5]", is_regex=True)))
        )


def test_a_pattern_is_compiled_once_and_so_is_a_refusal() -> None:
    kept = KeptPatterns()
    assert kept.get("goose.*dock", False) is kept.get("goose.*dock", False)
    assert kept.get("goose.*dock", True) is not kept.get("goose.*dock", False)
    size = kept.size_bytes
    for _ in range(3):
        with pytest.raises(InvalidInput, match="refers back"):
            kept.get(r"(x)\1", False)
    assert size + BYTES_BESIDES < kept.size_bytes < size + 2 * BYTES_BESIDES


def test_kept_patterns_stay_within_their_bytes() -> None:
    kept = KeptPatterns(most_bytes=20 * BYTES_BESIDES)
    for number in range(100):
        kept.get(f"goose{number}", False)
        assert kept.size_bytes <= 20 * BYTES_BESIDES
    assert kept.get("goose99", False) is kept.get("goose99", False)


def test_expressions_read_few_characters_of_what_is_told() -> None:
    links = [entry(f"word{n + 1} " + "x" * 1_000, f"word{n}") for n in range(5)]
    near = entry("Near.", "word1", is_regex=True)
    far = entry("Far.", "word4", is_regex=True)
    found = told("word0", *links, near, far, recursion=5, token_budget=4_096)
    assert "Near." in found
    assert "Far." not in found


async def test_an_unrecorded_talk_tells_lore_in_its_newest_messages() -> None:
    bot = Bot(name="Ada", lorebook=Lorebook(entries=(entry("Fact.", "goose"),)))
    turns = [Turn(sender=Sender.USER, content="goose")] * (lore.PREVIEWED + 50)
    with_lore = await lore.with_lore(bot, turns, "acc")
    assert len(with_lore) == len(turns)
    told_at = [place for place, turn in enumerate(with_lore) if getattr(turn, "lore", ())]
    assert told_at[0] == 50


def test_a_book_has_few_expressions() -> None:
    many = [entry("Fact.", *(f"goose{n}" for n in range(50)), is_regex=True)] * 4
    require_usable(Lorebook(entries=(*many,)))
    with pytest.raises(InvalidInput, match="has 201 regular expressions; 200 are allowed"):
        require_usable(Lorebook(entries=(*many, entry("Fact.", "dock", is_regex=True))))


@given(
    st.lists(st.text("aB1.\u00df \u9f8d_", max_size=6), max_size=40), st.text("aB1.\u00df \u9f8d_")
)
@settings(deadline=None)
def test_keys_are_found_together_as_one_by_one(keys: list[str], text: str) -> None:
    expected = {key for key in keys if is_said(key, text)}
    with_search = mentioned(text, keys, is_case_sensitive=False)
    assert with_search == expected
    sorted_list = mentioned(text + "\n" * 10_000, [*keys, *LONG], is_case_sensitive=False)
    assert sorted_list - set(LONG) == expected - {key for key in expected if "\n" in key}


LONG = [". " * 99 + str(number) for number in range(100)]


def is_said(key: str, text: str) -> bool:
    """Find a key as whole words, in the plainest way."""
    key, text = key.casefold().strip(), text.casefold()
    return bool(key) and any(
        text.startswith(key, at)
        and not is_joined(text[at - 1 : at] if at else "", key[0])
        and not is_joined(key[-1], text[at + len(key) : at + len(key) + 1])
        for at in range(len(text))
    )


def is_joined(left: str, right: str) -> bool:
    return all(one.isalnum() and one < "\u2e80" for one in (left, right))


def test_what_is_found_again_is_cut() -> None:
    first = entry("dock " + "x " * 4_000, "goose")
    last = entry("x " * 4_000 + "pier", "goose")
    book = [first, last, entry("Near.", "pier"), entry("Far.", "dock")]
    found = told("goose", *book, recursion=1, token_budget=4_096)
    assert "Near." in found
    assert "Far." not in found


def test_a_book_that_takes_long_is_read_in_a_thread() -> None:
    short = Lorebook(entries=(entry("Fact.", "goose"),))
    assert not takes_long(short, ["a goose"])
    assert takes_long(short, ["a goose " * 1_000])
    assert takes_long(Lorebook(entries=(entry("Fact.", "goose", is_regex=True),)), ["a"])


@pytest.mark.parametrize("name", BOOKS)
def test_a_hostile_book_is_refused_or_looked_through(name: str) -> None:
    try:
        require_usable(BOOKS[name])
    except InvalidInput:
        return
    for said in SAID:
        assert len(triggered(BOOKS[name], [said], ())) <= len(BOOKS[name].entries)


def test_the_budget_keeps_what_has_priority_and_order_places_it() -> None:
    entries = (
        entry("a" * 40, "goose", order=3, priority=1),
        entry("b" * 40, "goose", order=1, priority=2),
        entry("c" * 40, "goose", order=2),
    )
    assert told("goose", *entries, token_budget=20) == ["b" * 40, "a" * 40]
    assert told("goose", *entries, token_budget=10) == ["b" * 40]
    assert told("goose", *entries, token_budget=9) == []


def test_recursion_ends_where_the_book_says() -> None:
    chain = [entry(f"Then word{n + 1}.", f"word{n}") for n in range(9)]
    assert len(told("word0", *chain)) == 1
    assert len(told("word0", *chain, recursion=3)) == 4


def test_depth_is_the_number_of_the_newest_messages() -> None:
    book = Lorebook(
        entries=(entry("Far.", "goose", scan_depth=3), entry("Near.", "goose")), scan_depth=1
    )
    assert triggered(book, ["goose", "one", "two"], ()) == (0,)
    assert triggered(book, ["goose", "one", "two", "three"], ()) == ()


def test_an_entry_is_told_once_an_epoch() -> None:
    bot = Bot(name="Ada", lorebook=Lorebook(entries=(entry("Fact.", "goose"),)))
    turns: list[Utterance] = []
    for _ in range(2 * EPOCH_MESSAGES):
        turns += [lore.asked(bot, turns, "goose"), Utterance(Sender.BOT, "Honk.")]
    places = [place for place, turn in enumerate(turns) if turn.lore]
    assert places[0] == 0
    assert {b - a for a, b in itertools.pairwise(places)} == {EPOCH_MESSAGES + 2}


def test_what_is_in_force_takes_of_the_budget() -> None:
    book = Lorebook(entries=(entry("a" * 40, "goose"), entry("b" * 40, "dock")), token_budget=15)
    assert triggered(book, ["dock"], ()) == (1,)
    assert triggered(book, ["dock"], {0}) == ()
