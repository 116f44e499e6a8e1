"""Macros of cards: what each becomes, and that no text takes long."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.characters.macros import MAX_DEPTH, Names, depth_of, expand

NAMES = Names(char="Marlowe", user="Kim")


def said(text: str, seed: str = "conv_1", place: str = "description") -> str:
    return expand(text, NAMES, seed, place)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{char}} greets {{User}}.", "Marlowe greets Kim."),
        ("<BOT>, <char> and <user>", "Marlowe, Marlowe and Kim"),
        ("a{{// never said }}b", "ab"),
        ("a{{comment: never said}}b{{hidden_key:goose}}c", "abc"),
        ("{{reverse:Hello}}", "olleH"),
        ("{{reverse:{{char}}}}", "ewolraM"),
        ("{{random:only}}", "only"),
        ("{{random:a\\,b}}", "a,b"),
        ("{{roll:1}} {{roll:d1}} {{roll:3d1}}", "1 1 3"),
        ("{{{char}}}", "{Marlowe}"),
        ("{{original}}{{newline}}", "\n"),
        ("{{time}} {{nonsense:{{char}}}}", "{{time}} {{nonsense:Marlowe}}"),
        ("{{roll:many}} {{roll:0}} {{roll:21d6}}", "{{roll:many}} {{roll:0}} {{roll:21d6}}"),
        ("open {{char and }} closed", "open {{char and }} closed"),
        ("{{char", "{{char"),
        ("char}} x", "char}} x"),
    ],
)
def test_each_macro_becomes_what_the_specification_says(text: str, expected: str) -> None:
    assert said(text) == expected


def test_chance_stays_with_the_conversation_and_differs_between_them() -> None:
    text = "{{random:a,b,c,d}}{{random::a::b::c::d}}{{roll:d20}}"
    assert said(text) == said(text)
    assert len({said(text, seed=f"conv_{number}") for number in range(50)}) > 20
    picks = "{{pick:a,b,c,d,e,f}}"
    assert len(set(said(picks * 10))) == 1
    assert said(picks, place="greeting") == said(picks)
    assert len(set(said("{{random:a,b,c,d,e,f}}" * 20))) > 1


def test_dice_are_fair_enough() -> None:
    rolls = [int(said("{{roll:6}}", seed=str(number))) for number in range(3_000)]
    assert sorted(set(rolls)) == [1, 2, 3, 4, 5, 6]
    assert all(400 < rolls.count(side) < 600 for side in range(1, 7))


def test_a_name_that_looks_like_a_macro_is_not_expanded() -> None:
    names = Names(char="{{user}}", user="{{roll:6}} <char>")
    assert expand("{{char}} and {{user}}", names, "", "") == "{{user}} and {{roll:6}} <char>"


def test_macros_beyond_the_depth_stay_as_text() -> None:
    deep = "{{reverse:" * (MAX_DEPTH + 2) + "x" + "}}" * (MAX_DEPTH + 2)
    assert depth_of(deep) == MAX_DEPTH + 2
    assert "reverse" in said(deep)[::-1] or "reverse" in said(deep)


@pytest.mark.parametrize(
    "piece",
    [
        "{{",
        "}}",
        "{{reverse:",
        "{{random:",
        "{{{",
        "<user",
        "{{pick:a,",
        "{{//",
        "\\,",
        "{{roll:20d6}}",
        "<bot>",
    ],
)
def test_work_on_a_long_text_is_proportional_to_its_length(piece: str) -> None:
    text = (piece * 16_384)[:16_384]
    assert lines_run(text) < 64 * len(text)
    assert lines_run(text[: len(text) // 2] + "}}" * (len(text) // 4)) < 64 * len(text)


def lines_run(text: str) -> int:
    """Count the lines of Python that the expansion takes: the same on every machine."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        said(text)
    finally:
        sys.settrace(before)
    return count


@given(st.text(alphabet="{}:,charuse/rndomick <>\\d0123"))
def test_any_text_has_an_expansion_of_bounded_length(text: str) -> None:
    assert len(said(text)) <= 16 * len(text) + 16
