"""Strings of a certain form, refused with a sentence instead of a regular expression."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints, WithJsonSchema


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
