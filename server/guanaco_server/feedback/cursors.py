"""Places in the sequence of copies, as clients keep them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from guanaco.errors import InvalidInput
from guanaco.feedback import Order

FORM = re.compile(r"fb-([0-9]{1,18})")
LAST = 10**18


@dataclass(frozen=True)
class Window:
    """The copies numbered over ``after``, up to ``until``."""

    after: int = 0
    until: int = LAST

    @staticmethod
    def beside(cursor: str | None, order: Order) -> Window:
        """What comes after a cursor in that order."""
        number = decode(cursor)
        if order == "oldest":
            return Window(after=number)
        return Window(until=number - 1) if cursor is not None else Window()


def including(cursor: str, order: Order) -> str:
    """The cursor after which, in that order, the very copy comes that this one names."""
    number = decode(cursor)
    return encode(number - 1 if order == "oldest" else number + 1)


def encode(number: int) -> str:
    return f"fb-{number}"


def decode(cursor: str | None) -> int:
    """The number; 0 without a cursor. InvalidInput for what this server never gave."""
    if cursor is None:
        return 0
    found = FORM.fullmatch(cursor)
    if found is None:
        raise InvalidInput(
            "The cursor is not one that this server gave.",
            hint="Leave it out to begin at the first rating.",
        )
    return int(found[1])
