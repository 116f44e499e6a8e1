"""What is counted: whole numbers under names, which add up.

Every figure of the leaderboard is computed from a sum of such tallies, and whole numbers add up to the same in any
order: so what was kept up to date step by step equals what is counted anew, to the last digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tally:
    """A name that is missing counts 0, and a 0 is never kept."""

    counts: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def __add__(self, other: Tally) -> Tally:
        return total((self, other))

    def __neg__(self) -> Tally:
        return Tally({name: -count for name, count in self.counts.items()})

    def __bool__(self) -> bool:
        return bool(self.counts)

    def histogram(self, prefix: str) -> dict[int, int]:
        """Counts by bucket of the names ``prefix:bucket``."""
        start = f"{prefix}:"
        return {
            int(name[len(start) :]): count
            for name, count in self.counts.items()
            if name.startswith(start)
        }

    def to_json(self) -> str:
        return json.dumps(dict(sorted(self.counts.items())), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Tally:
        return Tally(json.loads(text))


def total(tallies: Iterable[Tally]) -> Tally:
    sums: dict[str, int] = {}
    for tally in tallies:
        for name, count in tally.counts.items():
            sums[name] = sums.get(name, 0) + count
    return Tally({name: count for name, count in sums.items() if count})
