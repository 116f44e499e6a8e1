"""Tests what GPUs cost: from the intervals in which they are held to hours, money and budgets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.errors import BudgetExceeded, InvalidInput
from guanaco.recipes import Recipe
from guanaco_server.assembly.platform import fleet_readers
from guanaco_server.costs.meter import CostMeter
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.model_server import ServerLoad
from guanaco_server.deployments.tables import Phase
from guanaco_server.observability.exposition import scrape
from guanaco_server.observability.fleet import FleetGauges
from guanaco_server.recipes.prices import PriceTable
from tests.fixtures.world import World

ID, OTHER = "acme-tiny_v1", "acme-big_v1"
HOUR = 3_600
RECIPE = Recipe(gpu_type="H100", gpu_count=2, tensor_parallel=2, max_model_len=1_096)


class Priced(World):
    """H100s for 3 an hour; a developer may spend 100 a month."""

    changes = {"gpu_types": ["H100"], "gpu_prices": {"H100": 3.0}}

    async def deploy(
        self, submission_id: str = ID, recipe: Recipe | None = RECIPE, developer: str = "ada"
    ) -> None:
        artifact = "a" * 64 if submission_id == ID else "b" * 64
        deployment = Deployment(
            submission_id, 1, artifact, 1_096, recipe=recipe, developer=developer
        )
        await self.deployments.wish(deployment)
        await self.deployments.mark_ready(submission_id, "memory://1")

    async def withdraw(self, submission_id: str = ID) -> None:
        async with self.database.write() as session:
            await self.deployments.withdraw(session, submission_id)

    async def spent(self, submission_id: str = ID) -> tuple[float, float]:
        cost = await self.costs.of_submission(submission_id, "ada", self.clock.now())
        return cost.gpu_hours, cost.cost


@pytest.fixture
async def world(database: Database) -> Priced:
    world = Priced(database)
    ada, bob = [await world.account(Role.DEVELOPER, name) for name in ("ada", "bob")]
    await world.publish(ada, ID)
    await world.publish(bob, OTHER)
    world.clock.at = datetime(2026, 1, 1, tzinfo=UTC)
    return world


async def test_gpus_cost_from_ready_until_they_are_withdrawn(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(2 * HOUR)
    assert await world.spent() == (4.0, 12.0)
    await world.withdraw()
    world.clock.advance(5 * HOUR)
    assert await world.spent() == (4.0, 12.0)
    cost = await world.costs.of_submission(ID, "ada", datetime(2025, 12, 31, tzinfo=UTC))
    assert (cost.gpus_now, cost.currency) == (0, "USD")
    assert cost.since == datetime(2025, 12, 31, tzinfo=UTC)


async def test_those_that_share_gpus_and_are_idle_pay_equal_parts(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    shared = Deployment(OTHER, 1, "a" * 64, 1_096, recipe=RECIPE, developer="bob")
    assert (await world.deployments.wish(shared)).server_key == ID
    await world.deployments.mark_ready(OTHER, "memory://1")
    world.clock.advance(2 * HOUR)
    assert (await world.spent(), await world.spent(OTHER)) == ((4.0, 12.0), (2.0, 6.0))
    assert (await world.costs.fleet()).gpus == {"H100": 2}
    await world.withdraw()
    world.clock.advance(HOUR)
    assert (await world.spent(), await world.spent(OTHER)) == ((4.0, 12.0), (4.0, 12.0))
    assert (await world.costs.costs()).gpu_hours == 8.0, "2 GPUs for 4 hours"


async def share(world: Priced) -> None:
    """Have two submissions of two developers share an engine of 2 GPUs from now on."""
    await world.deploy()
    shared = Deployment(OTHER, 1, "a" * 64, 1_096, recipe=RECIPE, developer="bob")
    await world.deployments.wish(shared)
    await world.deployments.mark_ready(OTHER, "memory://1")


@pytest.mark.both_databases
async def test_busy_part_of_a_shared_engine_is_paid_by_tokens(world: Priced) -> None:
    """Somebody was answered in half of the time, and one had 3 of 4 tokens."""
    await share(world)
    await world.deployments.record_use({ID: 900.0, OTHER: 300.0}, {ID: HOUR})
    world.clock.advance(2 * HOUR)
    assert await world.spent() == pytest.approx((2.5, 7.5)), "half of an hour, 3/4 of the other"
    assert await world.spent(OTHER) == pytest.approx((1.5, 4.5))
    await world.withdraw(OTHER)
    world.clock.advance(HOUR)
    assert await world.spent(OTHER) == pytest.approx((1.5, 4.5)), "what is over stays as it was"
    assert await world.spent() == pytest.approx((4.5, 13.5)), "it is alone now"
    costs = await world.costs.costs()
    assert costs.gpu_hours == pytest.approx(6.0), "2 GPUs for 3 hours"
    assert {one.developer: round(one.cost, 6) for one in costs.developers} == {
        "ada": 13.5,
        "bob": 4.5,
    }


async def test_a_third_that_joins_begins_another_division(world: Priced) -> None:
    await share(world)
    await world.deployments.record_use({ID: 10.0}, {ID: HOUR})
    world.clock.advance(HOUR)
    third = Deployment("acme-third_v1", 1, "a" * 64, 1_096, recipe=RECIPE, developer="ada")
    await world.publish(await world.account(Role.DEVELOPER, "carl"), "acme-third_v1")
    await world.deployments.wish(third)
    await world.deployments.mark_ready("acme-third_v1", "memory://1")
    world.clock.advance(HOUR)
    assert (await world.spent())[0] == pytest.approx(2 + 2 / 3, abs=0.01)
    assert (await world.spent(OTHER))[0] == pytest.approx(2 / 3, abs=0.01)
    assert (await world.spent("acme-third_v1"))[0] == pytest.approx(2 / 3, abs=0.01)
    assert (await world.costs.costs()).gpu_hours == pytest.approx(4.0, abs=0.01)


@pytest.mark.both_databases
async def test_each_days_cost_is_divided_by_that_days_use(world: Priced) -> None:
    await share(world)
    world.clock.advance(24 * HOUR + 1)
    await world.deployments.record_use({ID: 10.0}, {ID: 1.0})
    world.clock.advance(HOUR)
    await world.deployments.record_use({ID: 10.0}, {ID: HOUR})
    assert (await world.spent(OTHER))[0] == pytest.approx(24, abs=0.01), "not for the last hour"
    assert (await world.costs.costs()).gpu_hours == pytest.approx(50, abs=0.01)


async def test_a_budget_counts_what_was_used_by_tokens(world: Priced) -> None:
    """Ada used all of the tokens of 20 hours: 2 GPUs at 3 an hour are more than the budget of 100."""
    await share(world)
    world.clock.advance(20 * HOUR)
    assert await world.costs.require_within_budget("ada") is None
    await world.deployments.record_use({ID: 10.0}, {ID: 20 * HOUR})
    with pytest.raises(BudgetExceeded):
        await world.costs.require_within_budget("ada")


async def test_sleep_costs_nothing(world: Priced) -> None:
    await world.deploy()
    shared = Deployment(OTHER, 1, "a" * 64, 1_096, recipe=RECIPE, developer="bob")
    await world.deployments.wish(shared)
    await world.deployments.mark_ready(OTHER, "memory://1")
    world.clock.advance(HOUR)
    assert await world.deployments.put_to_sleep(ID, world.clock.now())
    world.clock.advance(HOUR)
    assert (await world.spent(), await world.spent(OTHER)) == ((1.0, 3.0), (3.0, 9.0))
    assert await world.deployments.put_to_sleep(OTHER, world.clock.now())
    world.clock.advance(HOUR)
    assert (await world.spent(), await world.spent(OTHER)) == ((1.0, 3.0), (3.0, 9.0))
    await world.deployments.mark_ready(ID, "memory://1")
    world.clock.advance(HOUR)
    assert await world.spent() == (3.0, 9.0)


async def test_starting_costs_nothing_and_neither_does_a_cpu(world: Priced) -> None:
    await world.deployments.wish(Deployment(ID, 1, "a" * 64, 1_096, recipe=RECIPE, developer="ada"))
    await world.deploy(OTHER, recipe=None, developer="bob")
    world.clock.advance(HOUR)
    assert await world.spent() == (0.0, 0.0)
    assert await world.spent(OTHER) == (0.0, 0.0)


async def test_restarting_server_holds_its_gpus_throughout(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    await world.deployments.mark(ID, Phase.RESTARTING, restarts=1)
    world.clock.advance(HOUR)
    await world.deployments.mark(ID, Phase.READY, "memory://2")
    assert await world.spent() == (4.0, 12.0)


async def test_restarted_platform_continues_the_same_cost_interval(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    after = Priced(world.database)
    after.clock.at = world.clock.at
    await after.deployments.mark(ID, Phase.READY, "memory://1")  # as the reconciler welcomes it
    after.clock.advance(HOUR)
    assert await after.spent() == (4.0, 12.0)
    async with world.database.read() as session:
        assert (await session.scalar(text("SELECT count(*) FROM gpu_intervals"))) == 1


async def test_redeploy_on_other_gpus_starts_an_interval_at_its_price(
    world: Priced,
) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    await world.deploy(recipe=RECIPE.model_copy(update={"gpu_count": 8}))
    world.clock.advance(HOUR)
    assert await world.spent() == (10.0, 30.0)


async def test_replicas_are_counted_while_there_are_so_many(world: Priced) -> None:
    await world.deploy()
    meter = CostMeter(PriceTable({"H100": 3.0}))
    for replicas in (1, 3, 3, 0):
        async with world.database.write() as session:
            await meter.begin(session, ID, "ada", RECIPE, world.clock.now(), replicas)
        world.clock.advance(HOUR)
    assert (await world.spent())[0] == 2 * (1 + 3 + 3)


async def test_replicas_that_scaling_adds_cost_from_then_on(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    await world.deployments.mark_applied(ID, 3)
    world.clock.advance(HOUR)
    await world.deployments.mark(ID, Phase.RESTARTING)
    await world.deployments.mark(ID, Phase.READY, ("memory://1",))
    world.clock.advance(HOUR)
    assert (await world.spent())[0] == 2 * (1 + 3 + 3)


async def test_old_prices_stay_as_they_were(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    dearer = CostMeter(PriceTable({"H100": 30.0}))
    async with world.database.write() as session:
        await dearer.begin(session, ID, "ada", RECIPE, world.clock.now(), 2)
    world.clock.advance(HOUR)
    assert (await world.spent())[1] == 2 * 3 + 4 * 30


async def test_an_admin_sees_developers_and_submissions_dearest_first(world: Priced) -> None:
    await world.deploy()
    await world.deploy(OTHER, RECIPE.model_copy(update={"gpu_count": 4}), "bob")
    world.clock.advance(HOUR)
    http = await world.http(Role.ADMIN)
    answer = (await http.get("/costs")).json()
    assert (answer["gpu_hours"], answer["cost"]) == (6.0, 18.0)
    assert [(one["developer"], one["cost"], one["budget"]) for one in answer["developers"]] == [
        ("bob", 12.0, 100.0),
        ("ada", 6.0, 100.0),
    ]
    assert [one["submission_id"] for one in answer["submissions"]] == [OTHER, ID]
    assert answer["submissions"][0]["gpus_now"] == 4


@pytest.mark.both_databases
async def test_only_the_part_within_the_time_asked_for_counts(world: Priced) -> None:
    await world.deploy()
    world.clock.at = datetime(2026, 2, 1, 1, tzinfo=UTC)
    assert (await world.costs.costs()).gpu_hours == 2.0  # February's first hour
    http = await world.http(Role.ADMIN)
    january = {"since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z"}
    assert (await http.get("/costs", params=january)).json()["gpu_hours"] == 31 * 24 * 2
    elsewhere = {"since": "2026-01-31T23:00:00-01:00"}  # midnight UTC
    assert (await http.get("/costs", params=elsewhere)).json()["gpu_hours"] == 2.0
    with pytest.raises(InvalidInput, match="must not be after"):
        await world.costs.costs(since=datetime(2027, 1, 1, tzinfo=UTC))
    assert (await http.get("/costs", params={"since": "2026-01-01T00:00:00"})).status_code == 422


async def test_a_developer_sees_the_cost_of_her_own_submission_only(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(HOUR)
    ada, bob = [await world.http(Role.DEVELOPER, name) for name in ("ada", "bob")]
    assert (await ada.get(f"/submissions/{ID}/cost")).json()["cost"] == 6.0
    assert (await bob.get(f"/submissions/{ID}/cost")).status_code == 404
    assert (await ada.get("/costs")).status_code == 403


async def test_budget_warns_when_nearly_spent_then_stops_new_work(world: Priced) -> None:
    assert await world.costs.require_within_budget("ada") is None
    await world.deploy()  # 6 an hour, of 100
    world.clock.advance(13 * HOUR)
    assert await world.costs.require_within_budget("ada") is None
    world.clock.advance(HOUR)
    warning = await world.costs.require_within_budget("ada")
    assert warning is not None
    assert "84.00 of this month's 100.00 USD" in warning
    world.clock.advance(3 * HOUR)
    with pytest.raises(BudgetExceeded, match=r"ada have cost 102\.00 USD this month.*100\.00"):
        await world.costs.require_within_budget("ada")
    assert await world.costs.require_within_budget("bob") is None


@pytest.mark.both_databases
async def test_a_new_month_is_a_new_budget(world: Priced) -> None:
    await world.deploy()
    world.clock.at = datetime(2026, 1, 31, tzinfo=UTC)
    with pytest.raises(BudgetExceeded):
        await world.costs.require_within_budget("ada")
    world.clock.at = datetime(2026, 2, 1, 1, tzinfo=UTC)
    assert await world.costs.require_within_budget("ada") is None


async def test_a_clock_that_was_set_back_costs_nothing(world: Priced) -> None:
    await world.deploy()
    world.clock.advance(-HOUR)
    await world.withdraw()
    assert await world.spent() == (0.0, 0.0)


async def test_the_gauges_say_what_is_wanted_held_and_paid(world: Priced) -> None:
    await world.deploy()
    await world.deployments.wish(Deployment(OTHER, 1, "b" * 64, 1_096, recipe=RECIPE))  # starts
    world.model_server.loads["memory://1"] = ServerLoad(5, 2, 0.75)
    world.clock.advance(HOUR)
    await FleetGauges(
        world.metrics,
        fleet_readers(world.platform.rooms),
        lambda: True,
        world.database.watch_commits().wait,
    ).take()
    shown = scrape(world.metrics).decode()
    for line in (
        'guanaco_gpus_wanted{gpu_type="H100"} 4.0',
        'guanaco_gpus_held{gpu_type="H100"} 2.0',
        'guanaco_cost_per_hour{gpu_type="H100"} 6.0',
        f'guanaco_submission_cost_per_hour{{submission="{ID}"}} 6.0',
        f'guanaco_submission_cost_this_month{{submission="{ID}"}} 6.0',
        f'guanaco_server_running_requests{{submission="{ID}"}} 5.0',
        f'guanaco_server_waiting_requests{{submission="{ID}"}} 2.0',
        f'guanaco_server_kv_cache_usage_ratio{{submission="{ID}"}} 0.75',
    ):
        assert f"{line}\n" in shown
    assert OTHER not in shown
    await FleetGauges(
        world.metrics,
        fleet_readers(world.platform.rooms),
        lambda: False,
        world.database.watch_commits().wait,
    ).take()
    assert ID not in scrape(world.metrics).decode(), "another process leads, and says so"
