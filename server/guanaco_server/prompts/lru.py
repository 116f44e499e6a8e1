"""A cache of bounded size that costs one dictionary look-up: two generations, of which the older one is dropped."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Generations(dict[K, tuple[V, int]]):
    """The young generation is the dictionary itself, so that ``get`` is the dictionary's own; ``find`` looks into both.

    Keeps what was used since the last ``limit`` units of entries came, and at most twice as much.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0
        self._old: dict[K, tuple[V, int]] = {}

    def find(self, key: K) -> V | None:
        entry = self.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.keep(key, *entry)
        return entry[0]

    def keep(self, key: K, value: V, size: int) -> None:
        if self._size + size > self._limit:
            self._old, self._size = dict(self), 0
            self.clear()
        if size <= self._limit:
            self[key] = (value, size)
            self._size += size
