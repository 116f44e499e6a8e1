"""Cursors: places in the sequence of copies, as clients keep them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from guanaco.errors import InvalidInput
from guanaco.feedback import Order

FORM = re.compile(r"fb-([0-9]{1,18})")
LAST = 10**18


@dataclass(frozen=True)
class NumberRange:
    """The copies with numbers above ``after`` and up to ``until``."""

    after: int = 0
    until: int = LAST

    @staticmethod
    def following(cursor: str | None, order: Order) -> NumberRange:
        """Return the range that follows a cursor in that order."""
        number = decode(cursor)
        if order == "oldest":
            return NumberRange(after=number)
        return NumberRange(until=number - 1) if cursor is not None else NumberRange()


def including(cursor: str, order: Order) -> str:
    """Return the cursor that is followed, in that order, by the copy that this cursor names."""
    number = decode(cursor)
    return encode(number - 1 if order == "oldest" else number + 1)


def encode(number: int) -> str:
    return f"fb-{number}"


def decode(cursor: str | None) -> int:
    """Return the number; 0 without a cursor. InvalidInput for a text that is no cursor."""
    if cursor is None:
        return 0
    found = FORM.fullmatch(cursor)
    if found is None:
        raise InvalidInput(
            "This is not a cursor of this server.",
            hint="Leave it out to begin at the first rating.",
        )
    return int(found[1])
