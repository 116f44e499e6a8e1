"""The autoscaler's decision, by table and by property; what it reads, and a replica's capacity."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco.submissions import Percentiles, StressReport
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, ServerLoad
from guanaco_server.deployments.model_servers.vllm_protocol import read_load
from guanaco_server.scaling.replicas import (
    LEAST_CAPACITY,
    VLLM_MAX_NUM_SEQS,
    DeploymentLoad,
    LoadSample,
    ReplicaLimits,
    capacity,
    capacity_shown,
    decide,
    max_num_seqs,
)
from guanaco_server.scaling.room import scaling_policy
from guanaco_server.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEN = ReplicaLimits(max_replicas=10, target=0.5)  # 5 requests a replica, at a capacity of 10


def ago(seconds: float, requests: int) -> LoadSample:
    return LoadSample(NOW - timedelta(seconds=seconds), requests // 2, requests - requests // 2)


def load(
    replicas: int, *samples: LoadSample, busy: int = 0, scaled_s: float | None = None
) -> DeploymentLoad:
    scaled_at = None if scaled_s is None else NOW - timedelta(seconds=scaled_s)
    return DeploymentLoad(replicas, 10, samples, busy, scaled_at)


@pytest.mark.parametrize(
    ("seen", "replicas"),
    [
        pytest.param(load(1), 1, id="nothing known, nothing changed"),
        pytest.param(load(1, ago(0, 30)), 1, id="one sample is no trend"),
        pytest.param(load(1, ago(15, 15), ago(0, 15)), 3, id="as many as are needed"),
        pytest.param(load(1, ago(15, 11), ago(0, 11)), 3, id="rounded up"),
        pytest.param(load(1, ago(15, 50), ago(0, 50)), 3, id="two more at a time"),
        pytest.param(load(1, ago(15, 50), ago(7, 5), ago(0, 50)), 1, id="a spike that passed"),
        pytest.param(load(9, ago(15, 99), ago(0, 99)), 10, id="no more than the limit"),
        pytest.param(load(1, ago(15, 15), ago(0, 15), scaled_s=29), 1, id="still warm"),
        pytest.param(load(1, ago(15, 15), ago(0, 15), scaled_s=30), 3, id="cooled"),
        pytest.param(load(4, ago(300, 5), ago(0, 5)), 3, id="one fewer at a time"),
        pytest.param(load(4, ago(299, 5), ago(0, 5)), 4, id="not quiet for long enough"),
        pytest.param(load(4, ago(300, 5), ago(150, 20), ago(0, 5)), 4, id="it was needed"),
        pytest.param(load(4, ago(300, 0), ago(0, 0), busy=4), 4, id="each has a stream"),
        pytest.param(load(4, ago(300, 0), ago(0, 0), scaled_s=59), 4, id="down is slower"),
        pytest.param(load(1, ago(300, 0), ago(0, 0)), 1, id="zero is another's decision"),
        pytest.param(load(12), 10, id="the limit was lowered"),
        pytest.param(load(12, busy=11), 11, id="but no stream is cut for it"),
    ],
)
def test_the_decision_is_what_the_table_says(seen: DeploymentLoad, replicas: int) -> None:
    assert decide(seen, TEN, NOW) == replicas


@pytest.mark.parametrize(
    ("spare", "requests", "replicas"), [(0.0, 10, 2), (0.1, 10, 3), (0.1, 9, 2), (1.0, 10, 4)]
)
def test_spare_capacity_is_room_beyond_the_load(spare: float, requests: int, replicas: int) -> None:
    seen = load(2, ago(15, requests), ago(0, requests))
    assert decide(seen, replace(TEN, spare=spare), NOW) == replicas


samples = st.lists(
    st.tuples(st.floats(0, 600), st.integers(0, 500), st.integers(0, 500)), max_size=20
).map(
    lambda seen: tuple(
        LoadSample(NOW - timedelta(seconds=age), running, waiting)
        for age, running, waiting in sorted(seen, reverse=True)
    )
)
loads = st.builds(
    DeploymentLoad,
    replicas=st.integers(0, 40),
    capacity=st.integers(0, 300),
    samples=samples,
    busy_replicas=st.integers(0, 40),
    scaled_at=st.none() | st.floats(0, 600).map(lambda age: NOW - timedelta(seconds=age)),
)
limits = st.builds(
    lambda least, more, target, steps: ReplicaLimits(
        min_replicas=least,
        max_replicas=least + more,
        target=target,
        up_step=steps[0],
        down_step=steps[1],
    ),
    st.integers(0, 5),
    st.integers(0, 30),
    st.floats(0.05, 1),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
)


@given(loads, limits)
def test_never_outside_the_limits_but_for_open_streams(
    seen: DeploymentLoad, within: ReplicaLimits
) -> None:
    wanted = decide(seen, within, NOW)
    assert wanted >= within.min_replicas
    assert wanted <= max(within.max_replicas, min(seen.busy_replicas, seen.replicas))


@given(loads, limits)
def test_a_replica_with_an_open_stream_is_never_taken(
    seen: DeploymentLoad, within: ReplicaLimits
) -> None:
    assert decide(seen, within, NOW) >= min(seen.busy_replicas, seen.replicas)


@pytest.mark.slow
@given(
    st.integers(1, 20), st.integers(1, 300), st.integers(0, 2_000), st.floats(0.1, 1)
)  # fmt: skip
def test_a_constant_load_never_flaps(
    replicas: int, requests_each: int, requests: int, target: float
) -> None:
    within = ReplicaLimits(max_replicas=20, target=target)
    seen = DeploymentLoad(replicas, requests_each)
    history = [replicas]
    for second in range(0, 3_000, 15):
        now = NOW + timedelta(seconds=second)
        seen = replace(seen, samples=(*seen.samples, LoadSample(now, requests, 0))[-25:])
        wanted = decide(seen, within, now)
        if wanted != seen.replicas:
            seen = replace(seen, replicas=wanted, scaled_at=now)
            history.append(wanted)
    assert history in (sorted(history), sorted(history, reverse=True))
    assert decide(seen, within, now) == seen.replicas, "and it arrives"


METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


def test_the_load_is_summed_over_a_servers_engines() -> None:
    assert read_load(METRICS) == ServerLoad(
        running=5, waiting=4, kv_cache_usage=0.5
    )  # the fullest's


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no numbers"),
        ("<html>", "no numbers"),
        ("vllm:num_requests_running 1", "no numbers"),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0", "say 'NaN'"),
        ("vllm:num_requests_running -1\nvllm:num_requests_waiting 0", "say '-1'"),
    ],
)
def test_metrics_without_numbers_are_a_fault(text: str, says: str) -> None:
    with pytest.raises(ModelServerFault, match=says):
        read_load(text)


@given(st.text())
def test_whatever_a_server_sends_is_a_load_or_a_fault(text: str) -> None:
    with contextlib.suppress(ModelServerFault):
        assert read_load(text).running >= 0


def report(rate: float, p50_ms: float | None) -> StressReport:
    e2e = None if p50_ms is None else Percentiles(p50=p50_ms, p95=p50_ms, p99=p50_ms, max=p50_ms)
    return StressReport(
        is_passed=True,
        reasons=[],
        at=NOW,
        duration_s=6,
        offered_rate=rate,
        requests=12,
        errors=0,
        error_rate=0,
        output_tokens=1,
        tokens_per_second=1,
        ttft_ms=None,
        tpot_ms=None,
        e2e_ms=e2e,
    )


def test_replica_capacity_is_littles_law_within_server_limits() -> None:
    assert capacity_shown(report(20, 1_500)) == 30
    assert capacity_shown(report(2, 100)) == LEAST_CAPACITY
    assert capacity_shown(report(2, None)) is None
    best_of = report(20, 1_500).model_copy(update={"candidates": 4})
    assert capacity_shown(best_of) == 120, "a reply has four sequences"
    assert max_num_seqs(["--max-num-seqs", "16"]) == max_num_seqs(["--max-num-seqs=16"]) == 16
    assert capacity(30, ["--max-num-seqs", "16"]) == 16
    assert capacity(30, []) == 30
    assert capacity(None, ["--max-num-seqs"]) == VLLM_MAX_NUM_SEQS


def test_min_replicas_alone_is_enough_and_a_greater_max_stays() -> None:
    limits = scaling_policy(Settings(min_replicas=2), shares_addresses=False).limits
    assert (limits.min_replicas, limits.max_replicas) == (2, 2)
    assert decide(load(1), limits, NOW) == 2
    assert (
        scaling_policy(
            Settings(min_replicas=2, max_replicas=5), shares_addresses=False
        ).limits.max_replicas
        == 5
    )
