"""The history of scores, on both databases."""

from __future__ import annotations

from datetime import timedelta

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco_server.competitions.tables import CompetitionRow
from guanaco_server.database.database import Database
from tests.fixtures.web import WebWorld


async def test_an_hours_and_a_days_last_figures_stay(database: Database) -> None:
    world = WebWorld(database)
    submission_id = await world.publish(await world.account(Role.DEVELOPER, "ada"))
    began = world.clock.now()
    for minutes in (0, 20, 40, 70):
        world.clock.at = began + timedelta(minutes=minutes)
        await world.web.history_keeper.note()
    points = (await world.web.history.of([submission_id]))[submission_id]
    assert [point.at - began for point in points] == [
        timedelta(minutes=40),
        timedelta(minutes=70),
    ]


async def test_what_is_older_than_three_days_is_told_by_the_day(database: Database) -> None:
    world = WebWorld(database)
    submission_id = await world.publish(await world.account(Role.DEVELOPER, "ada"))
    began = world.clock.now()
    for hours in range(0, 24 * 6, 8):
        world.clock.at = began + timedelta(hours=hours)
        await world.web.history_keeper.note()
    points = (await world.web.history.of([submission_id]))[submission_id]
    assert [(point.at - began) // timedelta(hours=1) for point in points] == [16, 40, 64, 88, 112, 136]  # fmt: skip


async def test_a_frozen_competition_is_written_down_no_more(database: Database) -> None:
    world = WebWorld(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    for name in ("spring", "summer"):
        await world.competitions.put(
            name, CompetitionRequest(name=name, starts_at=world.clock.now())
        )
    async with database.write() as session:
        row = await session.get(CompetitionRow, "spring")
        assert row is not None
        row.frozen_at = world.clock.now()
    await world.web.history_keeper.note()
    assert await world.web.history.of(["acme-tiny_v1"], "summer") != {}
    assert await world.web.history.of(["acme-tiny_v1"], "spring") == {}
