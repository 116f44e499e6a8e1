"""Finds phone, card and document numbers, and long numbers of unknown kind.

a run of 7 digits or more, however spaced
  → a date, years, an amount, a count?   left alone
  → Luhn → CARD · a register's check digit → DOCUMENT · a country's numbering plan → PHONE
  → with a letter at an end: only an unbroken run, a card, or a phone number from its first digit on
  → from 9 digits on, or after a word like "call" → NUMBER or PHONE, since such a run is rarely anything else

Document numbers have a form and, in most countries, a check digit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import phonenumbers
from stdnum import iban, luhn, numdb
from stdnum.br import cpf
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.in_ import aadhaar, pan
from stdnum.it import codicefiscale
from stdnum.pl import pesel
from stdnum.se import personnummer
from stdnum.us import ssn

from guanaco_server.anonymization.spans import Span, Tag

ON = r"(?:[ \t.()/_*-]{0,3}\d)"
RUN = re.compile(rf"(?:[+(]|(?<!\w)(?:(?<!\.)|(?<=[A-Za-z]\.)))\d{ON}{{6,24}}(?![A-Za-z_]|\.?\d)")
GLUE = re.compile(r"[^\W\d]\+?\d{2}|\d{2}[^\W\d]")
GLUED = re.compile(rf"\+?(?<![\d.])\d{ON}{{6,24}}(?!\.?\d)")
UNBROKEN = re.compile(r"(?<!\d)(?<!\d\.)\d{7,}")
SOME_DIGITS = re.compile(r"\d\D*\d\D*\d")
HARMLESS = (
    re.compile(r"\d{4}([-./])\d{1,2}\1\d{1,2}(?:[ _-]\d{1,2}){0,3}"),  # a date, and a time
    re.compile(r"\d{1,2}([-./ ])\d{1,2}\1\d{4}(?:[ _-]\d{1,2}){0,3}"),
    re.compile(r"(?:1[5-9]|20)\d\d(?:[ ./-]{1,3}(?:1[5-9]|20)\d\d)+"),  # years
    re.compile(r"[1-9]\d{0,2}(?:\.\d{3}){2,}"),  # thousands, as on the continent
    re.compile(r"\d{1,2}\.\d+"),  # a decimal
    re.compile(r"\d{1,3}(?: ?000)+"),  # millions
    re.compile(r"[1-9]\d?(?:[ ./*()_-]{1,3}\d{1,2}){3,}"),  # a list of small numbers
    re.compile(r"\d{4}-\d{4}"),  # a range
)
SINGLE_DIGITS = re.compile(r"\d(?:[ ./*()_-]{1,3}\d)+")
MONEY_BEFORE = re.compile(r"[$€£¥₹][ \u00a0]?\Z")
CALL_BEFORE = re.compile(
    r"\b(?:call|phone|tel|telephone|mobile|cell|text|number|whats ?app|ring|sms|fax|anrufen|nummer|handy|telefon|número|"
    r"numero|móvil|llámame|celular|telefone|telemóvel|numéro|portable|appelle-moi)\b[^\d\n]{0,16}$",
    re.IGNORECASE,
)
MOST_RUNS = (
    1_000  # in one text: a check takes some 200 µs, so all runs of a text with more are hidden
)
CARD_DIGITS = range(13, 20)
SHORTEST_NUMBER = 9
CALLABLE_DIGITS = range(7, 16)  # ITU-T E.164: at most 15
LEFT, RIGHT = r"(?<![\w.])", r"(?![\w])"


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(LEFT + pattern + RIGHT, re.IGNORECASE)


# A form that is common in other texts too counts only with a check digit that catches nine of ten.
REGISTERS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (_form(r"\d{3}-\d{2}-\d{4}"), ssn.is_valid),
    (_form(r"\d{3}\.\d{3}\.\d{3}-\d{2}"), cpf.is_valid),
    (_form(r"\d{8}-?[A-Z]"), dni.is_valid),
    (_form(r"[XYZ]-?\d{7}-?[A-Z]"), nie.is_valid),
    (_form(r"\d{6}[-+A]\d{3}[0-9A-Y]"), hetu.is_valid),
    (_form(r"[12] ?\d{2} ?\d{2} ?\d{2} ?\d{3} ?\d{3} ?\d{2}"), nir.is_valid),
    (_form(r"\d{4} \d{4} \d{4}"), aadhaar.is_valid),
    (_form(r"[A-Z]{5}\d{4}[A-Z]"), pan.is_valid),
    (_form(r"[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]"), codicefiscale.is_valid),
    (_form(r"\d{11}"), pesel.is_valid),
    (_form(r"(?:19|20)?\d{6}[-+]\d{4}"), personnummer.is_valid),
    (
        _form(r"(?:QQ|[A-CEGHJ-PR-TW-Z]{2}) ?\d{2} ?\d{2} ?\d{2} ?[A-D]"),
        lambda _text: True,
    ),  # UK NINO
    (
        _form(
            r"[A-CEGHJ-PR-TW-Z][ .-]?[A-CEGHJ-NPR-TW-Z](?:[ .-]{1,2}\d[ .-]?\d|[ .-]?\d{2}){3}[ .-]{0,2}[A-D]"
        ),
        str.isupper,
    ),
)
IBAN_COUNTRIES = frozenset(prefix for _, prefix, *_ in numdb.get("iban").prefixes)
IBAN = _form(r"[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{1,4}){3,8}")
DATE = r"(?:\d{4}-\d\d?-\d\d?|\d\d?-\d\d?-\d{4})(?![\w-])"
NAMED_DOCUMENT = re.compile(
    r"\b(?:passport|driver'?s? licen[cs]e|licen[cs]e|id card|identity card|ssn|social security|insurance|tax id|"
    r"personalausweis|reisepass)\b"
    rf"[^\d\n]{{0,24}}?\b(?!{DATE})"
    r"(?P<number>(?=(?:[A-Z-]{0,20}\d){3})[A-Z0-9][A-Z0-9-]{5,20})(?![\w-])",
    re.IGNORECASE,
)


def find(text: str, regions: Sequence[str]) -> Iterator[Span]:
    if SOME_DIGITS.search(text):
        yield from _documents(text)
        yield from _runs(text, regions)


def is_phone(run: str, digits: str, regions: Sequence[str]) -> bool:
    """Check a number by its country code, or as one of the regions writes it."""
    if run.startswith(("+", "00")):
        return _is_valid("+" + digits.removeprefix("00"), None)
    return len(digits) in CALLABLE_DIGITS and any(_is_valid(run, region) for region in regions)


def _runs(text: str, regions: Sequence[str]) -> Iterator[Span]:
    runs = [(match, _tag) for match in RUN.finditer(text)]
    if GLUE.search(text):
        runs += [(match, _glued_tag) for match in UNBROKEN.finditer(text)]
        runs += [(match, _glued_groups_tag) for match in GLUED.finditer(text)]
    for match, tag_of in runs:
        tag = Tag.NUMBER if len(runs) > MOST_RUNS else tag_of(text, match, regions)
        if tag is not None:
            yield Span(*match.span(), tag)


def _glued_tag(text: str, match: re.Match[str], regions: Sequence[str]) -> Tag | None:
    is_long = len(match[0]) >= SHORTEST_NUMBER
    return _tag(text, match, regions) if is_long or _is_called(text, match) else None


def _glued_groups_tag(text: str, match: re.Match[str], regions: Sequence[str]) -> Tag | None:
    """Tag a run with a letter at an end. "rtx3080 3090" is no number, so only cards and whole phone numbers are."""
    digits = re.sub(r"\D", "", match[0])
    if _is_card(digits):
        return Tag.CARD
    is_whole = match[0].startswith(("+", "0"))
    return Tag.PHONE if is_whole and is_phone(match[0], digits, regions) else None


def _tag(text: str, match: re.Match[str], regions: Sequence[str]) -> Tag | None:
    run, before = match[0], _before(text, match)
    digits = re.sub(r"\D", "", run)
    if _is_card(digits):
        return Tag.CARD
    is_spaced_out = SINGLE_DIGITS.fullmatch(run) is not None
    if is_spaced_out:
        return None if digits in "1234567890" or digits in "9876543210" else Tag.PHONE
    if len(digits) in CALLABLE_DIGITS and _is_called(text, match):
        return Tag.PHONE
    if MONEY_BEFORE.search(before) or any(form.fullmatch(run) for form in HARMLESS):
        return None
    if is_phone(run, digits, regions):
        return Tag.PHONE
    return Tag.NUMBER if len(digits) >= SHORTEST_NUMBER else None


def _is_called(text: str, match: re.Match[str]) -> bool:
    return CALL_BEFORE.search(_before(text, match)) is not None


def _before(text: str, match: re.Match[str]) -> str:
    return text[max(0, match.start() - 32) : match.start()]


def _is_card(digits: str) -> bool:
    return len(digits) in CARD_DIGITS and digits[0] in "23456" and luhn.is_valid(digits)


def _is_valid(number: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number, region))
    except phonenumbers.NumberParseException:
        return False


def _documents(text: str) -> Iterator[Span]:
    yield from _ibans(text)
    for form, is_valid in REGISTERS:
        for match in form.finditer(text):
            if is_valid(match[0]):
                yield Span(*match.span(), Tag.DOCUMENT)
    for match in NAMED_DOCUMENT.finditer(text):
        yield Span(*match.span("number"), Tag.DOCUMENT)


def _ibans(text: str) -> Iterator[Span]:
    """Find IBANs. The words after a spaced one may look like its last groups."""
    for match in IBAN.finditer(text):
        candidate = match[0]
        if candidate[:2].upper() not in IBAN_COUNTRIES:
            continue
        while candidate and not iban.is_valid(candidate):
            candidate = candidate.rpartition(" ")[0]
        if candidate:
            yield Span(match.start(), match.start() + len(candidate), Tag.DOCUMENT)
