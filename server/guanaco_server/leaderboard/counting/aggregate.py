"""Sums of whole numbers under names.

Every figure of the leaderboard is computed from an aggregate. Whole numbers have the same sum in any order, so an
aggregate that is updated by deltas equals one that is counted from scratch, to the last digit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]  # competition, submission
UserKey = tuple[str, str]  # competition, user


@dataclass(frozen=True)
class Aggregate:
    """Counts by name. A missing name counts 0, and a count of 0 is never stored."""

    counts: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def __add__(self, other: Aggregate) -> Aggregate:
        """Add a few counts to many: the cost is that of the few."""
        sums = dict(self.counts)
        for name, count in other.counts.items():
            total = sums.get(name, 0) + count
            if total:
                sums[name] = total
            else:
                sums.pop(name, None)
        return Aggregate(sums)

    def __neg__(self) -> Aggregate:
        return Aggregate({name: -count for name, count in self.counts.items()})

    def __bool__(self) -> bool:
        return bool(self.counts)

    def histogram(self, prefix: str) -> dict[int, int]:
        """Return the counts of the names ``prefix:bucket`` by bucket."""
        start = f"{prefix}:"
        return {
            int(name[len(start) :]): count
            for name, count in self.counts.items()
            if name.startswith(start)
        }

    def histograms(self) -> Mapping[str, Mapping[int, int]]:
        """Return what ``histogram`` does for every prefix, in one pass; a missing prefix is empty."""
        found: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for name, count in self.counts.items():
            prefix, colon, bucket = name.partition(":")
            if colon:
                found[prefix][int(bucket)] = count
        return found

    def to_json(self) -> str:
        return json.dumps(dict(sorted(self.counts.items())), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Aggregate:
        return Aggregate(json.loads(text))


def sum_of(aggregates: Iterable[Aggregate]) -> Aggregate:
    sums: dict[str, int] = {}
    for aggregate in aggregates:
        for name, count in aggregate.counts.items():
            sums[name] = sums.get(name, 0) + count
    return Aggregate({name: count for name, count in sums.items() if count})


@dataclass
class Deltas:
    """The changes that one transaction makes to the stored aggregates.

    ``votes`` holds the first votes of each user whose votes were counted: by submission, True for thumbs up.
    """

    entries: defaultdict[Key, list[Aggregate]] = field(default_factory=lambda: defaultdict(list))
    votes: dict[UserKey, dict[str, bool]] = field(default_factory=dict)

    def replace(self, key: Key, old: Aggregate | None, new: Aggregate | None) -> None:
        """Subtract what was counted before and add what is counted now."""
        if old is not None:
            self.entries[key].append(-old)
        if new is not None:
            self.entries[key].append(new)

    def sums(self) -> dict[Key, Aggregate]:
        """Return each submission's total change, including totals of zero: its votes may have changed sides."""
        return {key: sum_of(entries) for key, entries in self.entries.items()}
