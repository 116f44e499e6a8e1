"""Chance that can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from struct import Struct

WORDS = Struct("<8Q")


def draws(seed: int, key: str) -> Iterator[float]:
    """Numbers in [0, 1), uniform and without end, that depend on nothing but the seed and the key."""
    for block in count():
        digest = blake2b(f"{seed} {block} {key}".encode(), digest_size=WORDS.size).digest()
        for word in WORDS.unpack(digest):
            yield (word >> 11) * 2.0**-53
