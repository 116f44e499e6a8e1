"""Cursors of pages whose rows go by a time and an id, newest first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from guanaco.errors import InvalidInput


@dataclass(frozen=True)
class TimeCursor:
    """Writes and reads the cursors of one kind of row, whose ids begin with ``prefix``."""

    prefix: str

    def encode(self, at: datetime, id: str) -> str:
        """Return the time in microseconds, and the id."""
        return f"{round(at.timestamp() * 1_000_000)}-{id}"

    def decode(self, cursor: str | None) -> tuple[datetime, str] | None:
        """Return the time and the id; None without a cursor. InvalidInput for a text that is no such cursor."""
        if cursor is None:
            return None
        found = re.fullmatch(rf"([0-9]{{1,17}})-({self.prefix}_[0-9a-f]{{32}})", cursor)
        if found is None:
            raise InvalidInput(
                "The cursor is none of this server's.", hint="Use a page's next_cursor."
            )
        seconds, microseconds = divmod(int(found[1]), 1_000_000)
        try:
            at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
        except (OverflowError, ValueError):
            raise InvalidInput("The cursor is none of this server's.") from None
        return at, found[2]
