"""Strings of a certain form, refused with a sentence instead of a regular expression."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)

from guanaco.contract import is_tolerant


def _must_match(pattern: str, sentence: str) -> AfterValidator:
    matches = re.compile(pattern).fullmatch

    def check(text: str) -> str:
        if matches(text) is None:
            raise ValueError(sentence)
        return text

    return AfterValidator(check)


REPO = r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"
REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
ACCOUNT = r"[A-Za-z0-9][A-Za-z0-9._-]*"
SLUG = r"[a-z0-9][a-z0-9-]*"
ONE_LINE = r"[^\x00-\x1f\x7f]+"
# C1 controls, lone surrogates, soft hyphens, Hangul fillers, tags outside of the flag of a region, and marks that hide text
# or reverse its direction. What joins or parts letters stays.
DECEPTIVE = re.compile(
    "[\x80-\x9f\xad\u061c\u115f\u1160\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\uffa0\ud800-\udfff]"
    "|(?<![\U0001f3f4\U000e0000-\U000e007f])[\U000e0000-\U000e007f]+"
    "|(?<=\U0001f3f4)(?![\U000e0030-\U000e0039\U000e0061-\U000e007a]{4,6}\U000e007f(?![\U000e0000-\U000e007f]))"
    "[\U000e0000-\U000e007f]+"
)
FIRST_YEAR, LAST_YEAR = 1900, 9998  # of a moment that every time zone can name


def _not_deceptive(text: str, info: ValidationInfo) -> str:
    if DECEPTIVE.search(text) and not is_tolerant(info):
        raise ValueError("It should have no invisible characters, nor ones that turn text around")
    return text


def _in_every_zone(moment: datetime, info: ValidationInfo) -> datetime:
    if is_tolerant(info):
        return moment
    try:
        year = moment.astimezone(UTC).year
    except OverflowError:
        year = 0
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise ValueError(f"It should be a time between the years {FIRST_YEAR} and {LAST_YEAR}")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_in_every_zone)]
"""A time with its zone."""

Repo = Annotated[
    str,
    StringConstraints(max_length=193),
    _must_match(REPO, "It should look like org/name, as on the Hub"),
    WithJsonSchema({"type": "string", "maxLength": 193, "pattern": f"^{REPO}$"}),
]
Revision = Annotated[
    str,
    StringConstraints(max_length=128),
    _must_match(REVISION, "It should be a branch, a tag or a commit"),
    WithJsonSchema({"type": "string", "maxLength": 128, "pattern": f"^{REVISION}$"}),
]
AccountName = Annotated[
    str,
    StringConstraints(max_length=64),
    _must_match(ACCOUNT, "It should be letters, digits, dots, dashes and underscores"),
    WithJsonSchema({"type": "string", "maxLength": 64, "pattern": f"^{ACCOUNT}$"}),
]
OneLine = Annotated[
    str,
    StringConstraints(max_length=64),
    _must_match(ONE_LINE, "It should be 1 to 64 characters on one line"),
    AfterValidator(_not_deceptive),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 64}),
]
"""A name that people read."""

Slug = Annotated[
    str,
    StringConstraints(max_length=64),
    _must_match(SLUG, "It should be small letters, digits and dashes"),
    WithJsonSchema({"type": "string", "maxLength": 64, "pattern": f"^{SLUG}$"}),
]
"""An id that people choose."""
