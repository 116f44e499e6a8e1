"""Ids of conversations and ratings that name the period they are stored in.

    conv_00000000 0000002a 9f86d081884c7d65      conv_ or fb_, a mark, the period's number, chance
    conv_9f86d0814c7d4659ab1282f0a2feaa08        without a period: on SQLite, and what is older than partitions

The tables are partitioned by ranges of these ids, so a query that names a conversation finds its partition, and a unique
constraint on a conversation needs no other column. Ids without a period are of the default partition.
"""

from __future__ import annotations

import re
import secrets
import uuid

CONVERSATION, RATING = "conv_", "fb_"
MARK = "00000000"
NEXT_MARK = "00000001"  # ids with a period are from MARK until before this
PERIOD = re.compile(MARK + "[0-9a-f]{8}")
PERIOD_CHARS = 16


def new_conversation_id(period: int | None) -> str:
    return CONVERSATION + (uuid.uuid4().hex if period is None else _prefix(period) + _chance())


def new_rating_id(conversation_id: str) -> str:
    """Return an id of the conversation's period."""
    prefix = conversation_id.removeprefix(CONVERSATION)[:PERIOD_CHARS]
    return RATING + (prefix + _chance() if PERIOD.fullmatch(prefix) else uuid.uuid4().hex)


def bounds(kind: str, period: int) -> tuple[str, str]:
    """Return the first id of a period, and the first one after it. ``kind`` is CONVERSATION or RATING."""
    return kind + _prefix(period), kind + _prefix(period + 1)


def all_bounds(kind: str) -> tuple[str, str]:
    """Return the bounds of all ids that have a period."""
    return kind + MARK, kind + NEXT_MARK


def _prefix(period: int) -> str:
    return f"{MARK}{period:08x}"


def _chance() -> str:
    return secrets.token_hex(8)
