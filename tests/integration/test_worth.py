"""Tests who is awake by worth: who makes room, for whom, and where conversations go meanwhile. Cluster and model servers are in memory."""

from __future__ import annotations

import logging

import pytest

from guanaco.accounts import Role
from guanaco.competitions import OPEN
from guanaco.errors import ModelWaking
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import Phase
from guanaco_server.leaderboard.tables import ScoreRow
from tests.fixtures.scaled import QUIET_S, Scaled

STAY_S = 1_200.0  # 20 ratings at a minute each, until ratings have come


class ByWorth(Scaled):
    """Two servers; conversations open at once on whoever is awake."""

    changes = {**Scaled.changes, "sleep_policy": "worth", "wake_wait_s": 0.1}

    async def vote(self, **votes: tuple[int, int]) -> None:
        """Count these numbers of thumbs up and down for each."""
        async with self.database.write() as session:
            for name, (up, down) in votes.items():
                row = ScoreRow(
                    competition=OPEN, submission_id=name, tally="{}", up=up, down=down, version=1,
                    rated=up + down,
                )  # fmt: skip
                await session.merge(row)
        await self.routing.refresh()

    async def begin(self, *names: str, **votes: tuple[int, int]) -> None:
        """Serve all of them one after another; the last two stay awake."""
        for number, name in enumerate(names):
            if number >= 2:
                self.clock.advance(QUIET_S)
            await self.ask(name, f"dev-{name}")
            for _ in range(2):
                await self.reconciler.reconcile()
            await self.serve_asked(name)
        await self.vote(**votes)

    async def serve_asked(self, name: str) -> None:
        await self.deployments.servers.apply(self.deployment(name))
        self.clock.advance(3)
        await self.deployments.mark_ready(name, f"memory://{name}")
        await self.set_deployed(name)
        await self.routing.refresh()
        await self.reconciler.reconcile()

    async def look(self, after_s: float = 10, *used: str) -> None:
        """Let time pass, then have a turn of the loops; ``used`` had a message just before."""
        self.clock.advance(after_s)
        for name in used:
            self.traffic.note(name)
        await self.routing.refresh()
        await self.reconciler.reconcile()
        await self.routing.refresh()

    async def awake(self) -> set[str]:
        rows = await self.deployments.list_wishes()
        return {row.submission_id for row in rows if row.phase.has_server}


async def with_a_newcomer(database: Database, kind: type[ByWorth] = ByWorth) -> ByWorth:
    """The newcomer sleeps; of the two that are awake one leads, and the other one is known to be far behind."""
    world = kind(database, servers=2)
    votes = {"leader": (900, 100), "behind": (100, 900), "newcomer": (0, 0)}
    await world.begin("newcomer", "leader", "behind", **votes)
    assert await world.awake() == {"leader", "behind"}
    return world


@pytest.mark.both_databases
async def test_what_is_known_makes_room_for_what_is_not(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = await with_a_newcomer(database)
    await world.look(STAY_S, "behind")
    assert (await world.row("behind")).yields_to == "newcomer"
    assert "behind makes room for newcomer: an hour of it is worth 0.00" in caplog.text
    backend = await world.http(Role.BACKEND)
    for number in range(4):
        answer = await backend.get("/assignment", params={"user_id": f"u{number}"})
        assert answer.json() == {"submission_id": "leader"}
    for _ in range(5):
        await world.look(QUIET_S / 2)
    assert await world.awake() == {"leader", "newcomer"}
    assert await world.phase("newcomer") is Phase.READY
    assert (await world.row("behind")).yields_to is None


async def test_of_two_alike_the_one_of_fewer_tokens_wakes(
    database: Database,
) -> None:
    world = ByWorth(database, servers=2)
    votes = {"leader": (900, 100), "behind": (100, 900), "brief": (5, 5), "talky": (5, 5)}
    await world.begin("brief", "talky", "leader", "behind", **votes)
    await world.look()
    await world.deployments.record_use({"brief": 1_000.0, "talky": 9_000.0}, {})
    await world.vote(brief=(7, 5), talky=(7, 5))
    await world.look(STAY_S, "behind")
    assert (await world.row("behind")).yields_to == "brief"


async def test_what_makes_room_still_serves_while_it_has_traffic(database: Database) -> None:
    world = await with_a_newcomer(database)
    await world.look(STAY_S, "behind")
    for _ in range(5):
        await world.look(QUIET_S / 2, "behind")
    assert await world.awake() == {"leader", "behind"}


async def test_change_that_costs_more_than_it_brings_is_not_made(database: Database) -> None:
    world = ByWorth(database, servers=2)
    votes = {"leader": (700, 300), "second": (650, 350), "third": (640, 360)}
    await world.begin("third", "leader", "second", **votes)
    await world.deployments.note("third", wake_s=1e6)
    for _ in range(3):
        await world.look(STAY_S)
    assert await world.awake() == {"leader", "second"}


async def test_a_server_stays_for_as_long_as_its_waking_took(database: Database) -> None:
    world = await with_a_newcomer(database)
    for name in ("leader", "behind"):
        await world.deployments.note(name, wake_s=10 * STAY_S)
    await world.look(2 * STAY_S)
    assert (await world.row("behind")).yields_to is None
    await world.look(9 * STAY_S, "behind")
    assert (await world.row("behind")).yields_to == "newcomer"


async def test_a_conversation_of_what_sleeps_gets_room_before_worth_does(
    database: Database,
) -> None:
    world = await with_a_newcomer(database)
    await world.vote(newcomer=(1, 999))  # it is known by now, and worth nothing
    await world.look(STAY_S)
    with pytest.raises(ModelWaking):
        await world.routing.target("newcomer")
    await world.look(10, "leader", "behind")
    assert (await world.row("behind")).yields_to == "newcomer"
    for _ in range(4):
        await world.look(QUIET_S / 2)
    assert "newcomer" in await world.awake()
    assert "leader" in await world.awake(), "it is worth more than the other one"


async def test_nobody_sleeps_for_ever(database: Database) -> None:
    world = ByWorth(database, servers=2)
    votes = {"leader": (9_000, 1_000), "behind": (100, 900), "known": (100, 900)}
    await world.begin("known", "leader", "behind", **votes)
    await world.look(STAY_S)
    assert (await world.row("behind")).yields_to is None
    await world.look(world.settings.longest_sleep_s, "behind")
    assert (await world.row("behind")).yields_to == "known"


async def test_free_room_is_taken_by_worth_while_users_talk(database: Database) -> None:
    world = ByWorth(database, servers=2, feedback_target=1)
    votes = {"leader": (700, 300), "far": (100, 900), "near": (680, 320)}
    await world.begin("far", "near", "leader", **votes)
    for name in ("near", "leader"):
        assert await world.deployments.put_to_sleep(name, world.clock.now())
    await world.look()
    await world.look()
    assert await world.awake() == set(), "nobody talks"
    await world.routing.assign_chosen("leader", _fits)
    for _ in range(3):
        await world.look(1)
    assert await world.awake() == {"leader", "near"}


async def _fits(serving: object) -> bool:
    return True


class ByUse(ByWorth):
    changes = {**ByWorth.changes, "sleep_policy": "least_useful"}


async def test_without_the_policy_worth_changes_nothing(database: Database) -> None:
    world = await with_a_newcomer(database, ByUse)
    await world.look(STAY_S)
    await world.look(STAY_S)
    assert await world.awake() == {"leader", "behind"}
    assert (await world.row("behind")).yields_to is None
