"""Holds the prices of GPUs an hour, and how much a developer may spend. Put your own prices into ``gpu_prices``.

The defaults give orders of magnitude: on demand, one GPU, US dollars, from public price lists of spring 2026.
Between providers they differ several times over:

    L40S, A100-80, H100, H200   RunPod, secure cloud (https://www.runpod.io/pricing)
    A100-40                     Lambda (https://lambda.ai/pricing)
    MI300X, MI325X              the upper end of what clouds with AMD GPUs ask (Hot Aisle, Vultr)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOURS_A_MONTH = 730  # 365 days of 24 hours, by 12
DEFAULT_PRICES: Mapping[str, float] = {
    "A100-40": 1.29,
    "A100-80": 1.39,
    "H100": 2.69,
    "H200": 3.59,
    "L40S": 0.79,
    "MI300X": 1.99,
    "MI325X": 2.25,
}


@dataclass(frozen=True)
class PriceTable:
    """Per GPU and hour, by type; what is not named has its default."""

    own: Mapping[str, float] = field(default_factory=dict)

    def per_hour(self, gpu_type: str) -> float:
        """0 for a type that nobody gave a price."""
        return self.own.get(gpu_type, DEFAULT_PRICES.get(gpu_type, 0.0))

    def per_month(self, gpu_type: str, gpus: int) -> float:
        return gpus * HOURS_A_MONTH * self.per_hour(gpu_type)


DEFAULT_TABLE = PriceTable()


WARNING_SHARE = 0.8


@dataclass(frozen=True)
class Budgets:
    """``own`` by developer's name; ``everybody`` else's, None for no limit."""

    everybody: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    currency: str = "USD"

    def of(self, developer: str) -> float | None:
        return self.own.get(developer, self.everybody)
