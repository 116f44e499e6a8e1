"""What one transaction changes in the tallies."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from guanaco_server.leaderboard.tally import Tally, total

Key = tuple[str, str]  # competition, submission


@dataclass
class Ledger:
    """``ballots`` are the votes that users have now, of each (competition, user) whose votes were counted."""

    entries: defaultdict[Key, list[Tally]] = field(default_factory=lambda: defaultdict(list))
    votes: defaultdict[Key, int] = field(default_factory=lambda: defaultdict(int))
    ballots: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)

    def replace(self, key: Key, old: Tally | None, new: Tally | None) -> None:
        """What was counted before goes, what is counted now comes."""
        if old is not None:
            self.entries[key].append(-old)
        if new is not None:
            self.entries[key].append(new)

    def sums(self) -> dict[Key, Tally]:
        """By submission; those that come to nothing too, for their votes may have changed sides."""
        return {key: total(entries) for key, entries in self.entries.items()}
