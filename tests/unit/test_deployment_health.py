"""Tests when a server that runs and does not answer is stopped."""

from __future__ import annotations

from datetime import timedelta

from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.memory import MemoryCluster
from guanaco_server.deployments.engines.health import (
    HANGS_AFTER,
    DeploymentHealth,
    ServerState,
    look,
)
from guanaco_server.deployments.model_servers.memory import MemoryModelServer
from guanaco_server.deployments.reconciling.hangs import HangDetector
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import FixedClock

ONE, TWO = "http://one", "http://two"


def row(*ready: str, phase: Phase = Phase.READY) -> DeploymentRow:
    at = FixedClock().now()
    return DeploymentRow(submission_id="m_v1", phase=phase, endpoints=list(ready), updated_at=at)


def silent(*endpoints: str) -> DeploymentHealth:
    return DeploymentHealth(ServerState.HEALTHY, (ONE,), endpoints)


async def test_the_cluster_is_told_which_replicas_answer() -> None:
    cluster, server = MemoryCluster(), MemoryModelServer()
    await cluster.apply_deployment(DeploymentSpec("m", ("serve",), {}))
    state = await cluster.observe("m")
    assert state is not None
    server.unhealthy = {state.endpoint}
    await look(cluster, server, "m")
    assert cluster.ready == {}

    server.unhealthy = set()
    await look(cluster, server, "m")

    assert cluster.ready == {"m": {state.endpoint}}


def test_one_that_was_ready_hangs_after_some_silent_looks() -> None:
    watch = HangDetector(FixedClock(), 60)
    assert watch.hanging(row(ONE, TWO), silent(TWO)) == []
    looks = [watch.hanging(row(ONE), silent(TWO)) for _ in range(HANGS_AFTER)]
    assert looks == [[]] * (HANGS_AFTER - 2) + [[TWO], []]


def test_one_that_answers_again_is_forgiven() -> None:
    watch = HangDetector(FixedClock(), 60)
    for _ in range(HANGS_AFTER - 1):
        assert watch.hanging(row(ONE, TWO), silent(TWO)) == []
    assert watch.hanging(row(ONE, TWO), silent()) == []
    assert watch.hanging(row(ONE, TWO), silent(TWO)) == []


def test_one_that_starts_has_its_time() -> None:
    clock = FixedClock()
    watch = HangDetector(clock, 60)
    for _ in range(60):
        assert watch.hanging(row(ONE), silent(TWO)) == []
        clock.advance(1)
    clock.advance(1)
    assert watch.hanging(row(ONE), silent(TWO)) == [TWO]


def test_where_none_answers_they_are_judged_as_one() -> None:
    clock = FixedClock()
    watch = HangDetector(clock, 60)
    looks = [watch.hangs(row(ONE, TWO)) for _ in range(HANGS_AFTER)]
    assert looks == [False] * (HANGS_AFTER - 1) + [True]
    restarting = row(phase=Phase.RESTARTING)
    assert not watch.hangs(restarting)
    restarting.updated_at -= timedelta(seconds=61)
    assert watch.hangs(restarting)


def test_who_is_no_longer_wished_for_is_forgotten() -> None:
    watch = HangDetector(FixedClock(), 60)
    for _ in range(HANGS_AFTER - 1):
        watch.hangs(row(ONE))
    watch.forget_all_but({"other_v1"})
    assert not watch.hangs(row(ONE))
