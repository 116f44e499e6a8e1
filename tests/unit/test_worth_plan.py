"""Tests who makes room by worth, and for whom, where developers share a budget. The rows are made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.scaling.budget import Budget
from guanaco_server.scaling.usage import DeploymentUsage, Ownership
from guanaco_server.scaling.worth import Race
from guanaco_server.scaling.worth_plan import WorthPlanner
from guanaco_server.statistics.votes import VoteCount

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEADS, NEAR, FAR, NEW = VoteCount(900, 100), VoteCount(88, 12), VoteCount(10, 990), VoteCount(0, 0)
READY, SLEEPS, WAITS = Phase.READY, Phase.SLEEPING, Phase.WAITING


async def yields(servers: int, **fleet: tuple[Phase, VoteCount]) -> dict[str, str]:
    """Return who makes room and for whom; the first letter of a submission is its developer."""
    rows = [
        DeploymentRow(
            submission_id=name, phase=phase, gpu_count=1, wanted_replicas=1, wake_s=1.0,
            updated_at=NOW - timedelta(hours=2),
        )
        for name, (phase, _) in fleet.items()
    ]  # fmt: skip
    usage = {name: DeploymentUsage(Ownership(name[0], True, True)) for name in fleet}
    race = Race(0.05, {name: votes for name, (_, votes) in fleet.items()})

    async def races() -> Sequence[Race]:
        return [race]

    budget = Budget(max_model_servers=servers, quiet_s=60)
    planner = WorthPlanner(FixedClock(NOW), races, budget, 86_400, 1)
    return dict((await planner.plan(rows, usage)).yields)


async def test_for_who_waits_one_beyond_the_share_makes_room() -> None:
    """The one that is worth least belongs to a developer who has no more than a share."""
    fleet = {"a1": (READY, LEADS), "a2": (READY, NEAR), "b1": (READY, FAR)}
    made = await yields(3, **fleet, d1=(WAITS, NEW))
    assert len(made) == 1
    assert made.keys() <= {"a1", "a2"}
    assert await yields(3, **fleet, a3=(WAITS, NEW)) != {"b1": "a3"}, "bob's last one"


async def test_worth_gives_no_last_engine_beyond_the_share() -> None:
    fleet = {"a1": (READY, NEW), "b1": (READY, FAR)}
    assert await yields(2, **fleet, a2=(SLEEPS, NEW)) == {}
    assert await yields(2, **fleet, c1=(SLEEPS, NEW)) == {"b1": "c1"}, "who has none"
