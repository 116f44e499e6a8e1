"""How much money a developer's GPUs may cost in a calendar month (UTC)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WARNING_SHARE = 0.8


@dataclass(frozen=True)
class Budgets:
    """``own`` by developer's name; ``everybody`` else's, None for no limit."""

    everybody: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    currency: str = "USD"

    def of(self, developer: str) -> float | None:
        return self.own.get(developer, self.everybody)
