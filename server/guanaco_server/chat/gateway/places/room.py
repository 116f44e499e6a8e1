"""Builds the places at each engine, which routing and the checks of submissions need before there is a chat room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from guanaco_server.chat.gateway.places.places import CheckPlaces, RecordUse, TurnPlaces
from guanaco_server.database.database import Database
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class PlacesRoom:
    """``places`` are those of turns, ``checks`` those of submissions that are being checked."""

    places: TurnPlaces
    checks: CheckPlaces


def build_places(
    database: Database,
    clock: Clock,
    *,
    engine_of: Callable[[str], str],
    capacity: Callable[[str], int | None],
    read_capacities: Callable[[], Awaitable[object]],
    replicas: Callable[[str], Sequence[str]],
    record_use: RecordUse,
    metrics: Metrics,
    settings: Settings,
) -> PlacesRoom:
    places = TurnPlaces(
        database,
        clock,
        metrics,
        engine_of=engine_of,
        capacity=capacity,
        replicas=replicas,
        record_use=record_use,
        max_streams=settings.replica_max_streams,
        wait_s=settings.turn_wait_s,
    )
    return PlacesRoom(places, CheckPlaces(places, read_capacities))
