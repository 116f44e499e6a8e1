"""Tests what developers are not to read, and what they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco_server.anonymization.anonymizer import DEFAULT_REGIONS, Anonymizer
from tests.fixtures.personal_data import HARMLESS, HIDDEN

anonymizer = Anonymizer(DEFAULT_REGIONS)
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
        (
            "Jane Roe",
            "J a n e here, j-a-n-e, J.A.N.E. R.O.E",
            "<USER> here, <USER>, <USER>",
        ),
        ("Jane Roe", "JaneRoe or jane_roe, J·a·n·e, J\u0430ne", "<USER> or <USER>, <USER>, <USER>"),
        ("Ana", "an a and a na", "an a and a na"),
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


@settings(max_examples=40)
@given(st.text(max_size=200), st.sampled_from(HIDDEN))
def test_what_surrounds_it_neither_breaks_nor_lengthens_anything(
    around: str, line: tuple[str, str]
) -> None:
    text = f"{around}\n{line[0]}\n{around}"
    shown = anonymizer.text(text)
    assert TAG.search(shown)
    assert len(TAG.sub("", shown)) <= len(text)


@pytest.mark.parametrize(
    "unit",
    [
        "1 ", "1-", "a.", "a@", "@", "a", "a ", "a at ", "at ", "dot ", "a dot ", "a dot at ", "a.a at ", "a at a dot ",
        "a_1 at ", "gmail at gmail.", "(at)", "a(at)a.", "a [at] ", "@ a . ", ":", "0:", "::1 ", "1.1.1.1 ", "9", "00", "+1",
        "(1", "12.", "a1", "12a", "a1234567", "1234567a", "0770 0900 123x", "4111 1111 1111 1111a", "AB12 ", "DE89 ",
        "passport ", "passport-", "passport a-", "passport 1", "license A1-", "one ", "insta ", "insta a-", "insta:",
        "my insta is ", "my insta is a", "add me on discord ", "ig is a", "u/", "visit a.", "site is ", "https://", "a#1234",
        "a b ", "@ b ", "aAT", "aATb.", "aAtbDot", "a_at_", "-dot-", "a arroba ", "arroba b punto ", "a point ", "aatgmail",
        "j a n e ", "J.", "O7", "O7 ", "l0O", "0 one ", "zéro six ", "double ", "1AB ", "A1", "1A ", "A1A", "B-AB ", "AB-",
        "12-AB-", "K1A0", "10115 ", "in 10115 ", "1.2345, ", "1°", "1° N ", "gps 1.23 ", "00:1", "00:1a:", "1A1z", "0x1", "bc1q",
        "password ", "password is ", "my pin: ", "plate ", "plate A1 ", "janedoe88 on ", "a1_ on gmail ", "1HGCM82633A00435",
        "  a", "\t", "\u200b", "١", "é.é at ",
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.timeout(20)
def test_no_line_takes_for_ever(unit: str) -> None:
    """Each takes a tenth of a second; one in which the work grows with the square takes minutes."""
    anonymizer.text((unit * 15_000)[:15_000] + "@a dot com or b at x.com 1234567", "Sam")


def test_more_numbers_than_anybody_has_are_hidden_unasked() -> None:
    text = " x ".join(f"{number:09}" for number in range(2_000))
    assert anonymizer.text(text) == " x ".join(["<NUMBER>"] * 2_000)
