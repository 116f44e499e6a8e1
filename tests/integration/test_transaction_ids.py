"""The gauges of PostgreSQL's transaction ids, as derived and as read from a server."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.database.postgresql.transaction_ids import (
    USABLE_IDS,
    IdReading,
    TransactionIdGauges,
    gauges,
    read_ids,
)
from guanaco_server.observability.exposition import scrape
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import FixedClock
from tests.fixtures.world import World

pytestmark = pytest.mark.both_databases

FIRST = IdReading(
    at_s=0,
    next_id=2**33,
    oldest=200_000_000,
    oldest_multixact=1_000,
    frozen_at=200_000_000,
    multixact_frozen_at=400_000_000,
    messages=0,
)
TEN_TURNS = text("""
INSERT INTO messages (id, conversation_id, position, sender, content, created_at, is_deleted)
SELECT 'm' || n, conversations.id, 100 + n, 'user', 'Hello', now(), false FROM conversations, generate_series(1, 20) n
""")


def ids_in(metrics: Metrics) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(scrape(metrics).decode()):
        for sample in family.samples:
            if sample.name.startswith("guanaco_database_"):
                found.setdefault(sample.name, {})[sample.labels["kind"]] = sample.value
    return found


def test_days_left_are_those_at_the_pace_between_two_readings() -> None:
    after_an_hour = replace(
        FIRST, at_s=3600, next_id=FIRST.next_id + 7_200_000, messages=14_400_000
    )
    found = gauges(FIRST, after_an_hour)
    assert found.days_left == pytest.approx((USABLE_IDS - 200_000_000) / (24 * 7_200_000))
    assert found.per_thousand_turns == 1000


def test_nothing_is_said_of_a_pace_that_is_not_known() -> None:
    assert gauges(FIRST, FIRST).days_left is None
    idle = gauges(FIRST, replace(FIRST, at_s=60))
    assert (idle.days_left, idle.per_thousand_turns) == (math.inf, None)


def test_no_day_is_left_when_every_id_is_used() -> None:
    last = replace(FIRST, at_s=60, next_id=FIRST.next_id + 1, oldest=USABLE_IDS + 1)
    assert gauges(FIRST, last).days_left == 0


async def test_server_reports_its_ids_and_sqlite_has_none(database: Database) -> None:
    metrics = Metrics()
    clock = FixedClock()
    gauges = TransactionIdGauges(database, metrics, clock)
    if database.engine.dialect.name == "sqlite":
        await gauges.start()
        await gauges.stop()
        assert ids_in(metrics) == {}
        return
    before = await read_ids(database, 0)
    await gauges.take()
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    http = await world.http(Role.BACKEND)
    await world.greet(http, await world.open(http))
    async with database.write() as session:
        await session.execute(TEN_TURNS)
        await session.execute(text("SELECT pg_stat_force_next_flush()"))  # PostgreSQL counts late
    clock.advance(3600)
    await gauges.take()

    after = await read_ids(database, 0)
    assert after.next_id > before.next_id
    assert after.messages - before.messages in (
        20,
        22,
    )  # the turn is counted when its connection idles
    said = ids_in(metrics)
    assert 0 < said["guanaco_database_oldest_id_age"]["transaction"] < after.next_id
    assert said["guanaco_database_id_vacuum_age"] == {"transaction": 2e8, "multixact": 4e8}
    assert 0 < said["guanaco_database_id_days_left"]["transaction"] < math.inf
    assert said["guanaco_database_ids_per_thousand_turns"]["transaction"] > 0
