"""Builds the partitions room."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.database.database import Database
from guanaco_server.partitions.service import Periods
from guanaco_server.runtime.clock import Clock


@dataclass(frozen=True)
class PartitionsRoom:
    periods: Periods


def build_partitions(database: Database, clock: Clock) -> PartitionsRoom:
    return PartitionsRoom(Periods(database, clock))
