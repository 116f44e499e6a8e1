"""Builds the costs room: what GPUs cost, and budgets."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.costs.service import CostService
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class CostsRoom:
    service: CostService


def build_costs(database: Database, clock: Clock, *, settings: Settings) -> CostsRoom:
    return CostsRoom(CostService(database, clock, settings.budgets))
