"""Tests who gets room, who has to go, and what those who wait are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.engines.swaps import idle_servers
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.scaling.admission import surplus
from guanaco_server.scaling.budget import (
    Budget,
    Claim,
    Room,
    RoomPlan,
    Tenant,
    share,
    shares_of,
    spare_replicas,
)
from guanaco_server.scaling.worth import Worth
from guanaco_server.scaling.worth_plan import WorthPlan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Room(1, 1)
TWO = Budget(max_model_servers=2, quiet_s=300)


def tenant(name: str, owner: str, quiet_s: float = 900, **what: object) -> Tenant:
    return Tenant(name, owner, ONE, NOW - timedelta(seconds=quiet_s), **what)  # type: ignore[arg-type]


def claim(name: str, owner: str, waited_s: float = 0, *, is_patient: bool = False) -> Claim:
    return Claim(name, owner, ONE, NOW - timedelta(seconds=waited_s), is_patient)


def test_free_room_goes_to_the_poorest_then_the_earliest() -> None:
    claims = [claim("a2", "ada", 30), claim("b1", "bob", 10), claim("c1", "cyd", 20)]
    plan = share(Budget(max_model_servers=3), [tenant("a1", "ada", 0)], claims, Room(), NOW)
    assert plan.granted == ["c1", "b1"]
    assert set(plan.waits) == {"a2"}
    assert plan.victims == []


def test_without_a_budget_everyone_is_granted() -> None:
    plan = share(Budget(), [], [claim("a", "ada"), claim("b", "bob", is_patient=True)], ONE, NOW)
    assert plan.granted == ["a", "b"]


@pytest.mark.parametrize(
    ("tenants", "victim"),
    [
        pytest.param([tenant("a1", "ada", 900), tenant("a2", "ada", 800)], "a1", id="longest ago"),
        pytest.param(
            [tenant("a1", "ada", 900), tenant("a2", "ada", 800, is_rated=True)], "a2", id="rated"
        ),
        pytest.param(
            [tenant("a1", "ada", 900, open_streams=1), tenant("a2", "ada", 800)],
            "a2",
            id="never one with an open stream",
        ),
        pytest.param(
            [tenant("a1", "ada", 299), tenant("a2", "ada", 300)], "a2", id="quiet for long enough"
        ),
        pytest.param(
            [Tenant("a1", "ada", ONE, None), tenant("a2", "ada")], "a2", id="not one that starts"
        ),
    ],
)
def test_the_least_useful_goes(tenants: list[Tenant], victim: str) -> None:
    plan = share(TWO, tenants, [claim("b1", "bob")], Room(), NOW)
    assert (plan.victims, plan.granted) == ([victim], [])
    assert plan.waits == {"b1": f"Stopping {victim} for it."}


def test_room_is_granted_when_empty_and_stops_nobody_else_meanwhile() -> None:
    tenants = [tenant("a2", "ada")]
    stopping = share(TWO, tenants, [claim("b1", "bob")], ONE, NOW)
    assert (stopping.granted, stopping.victims) == ([], [])
    assert stopping.waits == {"b1": "A model server is being stopped for it."}
    assert share(TWO, tenants, [claim("b1", "bob")], Room(), NOW).granted == ["b1"]


def test_nobody_takes_from_one_who_has_less() -> None:
    tenants = [tenant("a1", "ada", 0), tenant("b1", "bob")]
    plan = share(TWO, tenants, [claim("a2", "ada")], Room(), NOW)
    assert plan.victims == []
    assert plan.waits["a2"] == (
        "2 of 2 model servers are taken, and none can be freed: 1 started or had traffic within 300 s,"
        " 1 belong to developers who have no more than their share."
    )
    own = share(TWO, [tenant("a1", "ada"), tenant("b1", "bob")], [claim("a2", "ada")], Room(), NOW)
    assert own.victims == ["a1"], "but anybody may take from herself"


def test_a_developer_with_more_than_a_share_makes_room_first() -> None:
    """Four developers share four servers. Ada has two of them, which were used last."""
    tenants = [tenant("a1", "ada", 400), tenant("a2", "ada", 300)]
    tenants += [tenant("b1", "bob", 900, is_rated=True), tenant("c1", "cyd", 800)]
    budget = Budget(max_model_servers=4, quiet_s=300)
    assert share(budget, tenants, [claim("d1", "dan")], Room(), NOW).victims == ["a1"]


def test_nobody_with_a_share_takes_the_last_engine_of_others() -> None:
    """Bob's engine of two GPUs is as much as ada would have, of which a third of four is less."""
    big = replace(tenant("b1", "bob", 900), room=Room(2, 1))
    tenants = [tenant("a1", "ada", 0), big, tenant("c1", "cyd", 0)]
    budget = Budget(max_gpus=4, quiet_s=300)
    assert share(budget, tenants, [claim("a2", "ada")], Room(), NOW).victims == []
    assert share(budget, tenants, [claim("d1", "dan")], Room(), NOW).victims == ["b1"]
    own = [tenant("a1", "ada", 900), big, tenant("c1", "cyd", 0)]
    assert share(budget, own, [claim("a2", "ada")], Room(), NOW).victims == ["a1"]


def test_an_equal_share_is_of_all_who_have_or_ask() -> None:
    shares = shares_of(TWO, [("ada", ONE), ("ada", ONE)], ["bob", "ada"])
    assert (shares.share, shares.exceeds("ada"), shares.exceeds("bob")) == (1.0, True, False)
    alone = shares_of(TWO, [("ada", ONE), ("ada", ONE)], ["ada"])
    assert not alone.exceeds("ada")


def test_what_is_larger_than_everything_is_told_so() -> None:
    plan = share(
        Budget(max_gpus=2), [], [Claim("a", "ada", Room(4, 1), NOW)], Room(), NOW
    )  # fmt: skip
    assert plan.waits == {"a": "It needs 4 of 2 GPUs, which is more than there is."}


def test_a_patient_one_stops_nobody_and_lets_others_go_first() -> None:
    full = share(
        TWO, [tenant("a1", "ada"), tenant("a2", "ada")], [claim("b1", "bob", is_patient=True)], Room(), NOW
    )  # fmt: skip
    assert (full.victims, full.granted, full.waits) == ([], [], {})
    claims = [claim("b1", "bob", 900, is_patient=True), claim("c1", "cyd")]
    assert share(TWO, [tenant("a1", "ada")], claims, Room(), NOW).granted == ["c1"]


def test_replicas_take_only_what_is_free() -> None:
    assert spare_replicas(TWO, [tenant("a1", "ada")], ONE, 5) == 1
    assert spare_replicas(Budget(), [tenant("a1", "ada")], ONE, 5) == 5
    assert spare_replicas(Budget(max_gpus=3), [tenant("a1", "ada")], Room(2, 1), 5) == 1


owners = st.sampled_from(["ada", "bob", "cyd"])
tenancies = st.lists(
    st.tuples(owners, st.integers(0, 900), st.integers(0, 1), st.booleans()), max_size=6
).map(
    lambda given: [
        tenant(f"t{number}", owner, quiet, open_streams=streams, is_rated=rated)
        for number, (owner, quiet, streams, rated) in enumerate(given)
    ]
)
asked = st.lists(st.tuples(owners, st.integers(0, 900), st.booleans()), max_size=6).map(
    lambda given: [
        claim(f"c{number}", owner, waited, is_patient=patient)
        for number, (owner, waited, patient) in enumerate(given)
    ]
)


@given(tenancies, asked, st.integers(1, 6), st.integers(0, 2))
def test_the_budget_holds_and_no_stream_is_cut(
    tenants: list[Tenant], claims: list[Claim], servers: int, leaving: int
) -> None:
    budget = Budget(max_model_servers=servers)
    plan = share(budget, tenants, claims, Room(leaving, leaving), NOW)
    if len(tenants) + leaving <= servers:
        assert len(tenants) + leaving + len(plan.granted) <= servers
    else:
        assert plan.granted == []
    gone = {t.submission_id: t for t in tenants if t.submission_id in plan.victims}
    assert all(not t.open_streams for t in gone.values())
    over_budget = max(0, len(tenants) - servers)
    assert len(plan.victims) <= sum(not c.is_patient for c in claims) + over_budget


@given(tenancies, asked)
def test_stopping_one_for_another_makes_nothing_less_fair(
    tenants: list[Tenant], claims: list[Claim]
) -> None:
    """Sorted, what the developers have does not get worse: max-min."""
    budget = Budget(max_model_servers=max(1, len(tenants)))
    plan = share(budget, tenants, claims, Room(), NOW)
    owner_of = {c.submission_id: c.owner for c in claims}
    before = Counter(t.owner for t in tenants)
    settled = [t.owner for t in tenants if t.submission_id not in plan.victims]
    served = [*plan.granted, *(name for name, why in plan.waits.items() if "Stopping" in why)]
    after = Counter([*settled, *(owner_of[name] for name in served)])
    names = ("ada", "bob", "cyd")
    assert sorted(after[name] for name in names) >= sorted(before[name] for name in names)


def _asleep(name: str, used_s: float) -> DeploymentRow:
    at = NOW - timedelta(seconds=used_s)
    return DeploymentRow(
        submission_id=name, run=1, phase=Phase.SLEEPING, gpu_count=1, updated_at=at, recipe=None,
        quantization=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("worth", "stopped"), [(WorthPlan(), "old"), (WorthPlan({"old": Worth(2.0)}), "new")]
)
def test_servers_of_least_worth_stop_then_those_used_longest_ago(
    worth: WorthPlan, stopped: str
) -> None:
    rows = [_asleep("old", 900), _asleep("new", 60)]
    names = {name: deployment_name(name) for name in ("old", "new")}
    running = frozenset(names.values())
    one_left = RoomPlan(taken=Room(1, 1))
    budget = Budget(max_model_servers=2)
    idle = idle_servers(rows, ())

    def stops(plan: RoomPlan) -> frozenset[str]:
        return surplus(rows, idle, idle, running, plan, budget, 2, worth.rank)

    assert stops(one_left) == {names[stopped]}
    assert stops(RoomPlan()) == frozenset()
