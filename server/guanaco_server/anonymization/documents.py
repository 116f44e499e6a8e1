"""Numbers of identity documents and accounts: a register's form, and its check digit where it has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stdnum import iban
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
    (_form(r"[A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]"), lambda _text: True),  # UK NINO
)
IBAN = _form(r"[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{1,4}){3,8}")
DATE = r"(?:\d{4}-\d\d?-\d\d?|\d\d?-\d\d?-\d{4})(?![\w-])"
NAMED = re.compile(
    r"\b(?:passport|driver'?s? licen[cs]e|licen[cs]e|id card|identity card|ssn|social security|insurance|tax id|"
    r"personalausweis|reisepass)\b"
    rf"[^\d\n]{{0,24}}?\b(?!{DATE})"
    r"(?P<number>(?=(?:[A-Z-]{0,20}\d){3})[A-Z0-9][A-Z0-9-]{5,20})(?![\w-])",
    re.IGNORECASE,
)


def find(text: str) -> Iterator[Span]:
    yield from _ibans(text)
    for form, is_valid in REGISTERS:
        for match in form.finditer(text):
            if is_valid(match[0]):
                yield Span(*match.span(), Tag.DOCUMENT)
    for match in NAMED.finditer(text):
        yield Span(*match.span("number"), Tag.DOCUMENT)


def _ibans(text: str) -> Iterator[Span]:
    """The words behind a spaced one may look like its last groups."""
    for match in IBAN.finditer(text):
        candidate = match[0]
        while candidate and not iban.is_valid(candidate):
            candidate = candidate.rpartition(" ")[0]
        if candidate:
            yield Span(match.start(), match.start() + len(candidate), Tag.DOCUMENT)
