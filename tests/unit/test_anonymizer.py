"""What developers are not to read, and what they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.anonymization.anonymizer import Anonymizer
from tests.fixtures.personal_data import HARMLESS, HIDDEN

anonymizer = Anonymizer()
TAG = re.compile(r"<[A-Z]+>")


@pytest.mark.parametrize(("text", "expected"), HIDDEN)
def test_personal_data_becomes_a_tag(text: str, expected: str) -> None:
    assert anonymizer.text(text) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_an_ordinary_line_stays_as_it_is(text: str) -> None:
    assert anonymizer.text(text) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Sam", "I am sam, SAM I am. Samantha?", "I am <USER>, <USER> I am. Samantha?"),
        ("Ann-Marie O'Neil", "ann-marie  o'neil here", "<USER> here"),
        ("Jane Roe", "Jane says hi, Mrs Roe! a roe deer", "<USER> says hi, Mrs <USER>! a roe deer"),
        ("Zoë", "ZOË!", "<USER>!"),
        ("You", "You know me", "You know me"),
        ("a.*", "aaa a.* b", "aaa <USER> b"),
    ],
)
def test_the_users_own_name_becomes_user(name: str, text: str, expected: str) -> None:
    assert anonymizer.text(text, name) == expected


def test_a_tag_is_never_found_again() -> None:
    for text, _ in HIDDEN:
        once = anonymizer.text(text, "Sam")
        assert anonymizer.text(once, "Sam") == once


@given(st.text(max_size=200), st.sampled_from(HIDDEN))
def test_what_surrounds_it_neither_breaks_nor_lengthens_anything(
    around: str, line: tuple[str, str]
) -> None:
    text = f"{around}\n{line[0]}\n{around}"
    shown = anonymizer.text(text)
    assert TAG.search(shown)
    assert len(TAG.sub("", shown)) <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 " * 8_192,
        "1-" * 8_192,
        "a." * 8_192,
        "a@" * 8_192,
        "@" * 16_384,
        "a" * 16_384,
        "a at " * 3_277,
        "dot " * 4_096,
        ":" * 16_384,
        "0:" * 8_192,
        "9" * 16_384,
        "AB12 " * 3_277,
        "passport " * 1_820,
        "one " * 4_096,
        "\u200b" * 16_384,
        "١" * 16_384,
    ],
    ids=lambda text: repr(text[:9]),
)
@pytest.mark.timeout(20)
def test_no_line_takes_for_ever(text: str) -> None:
    anonymizer.text(text, "Sam")
