"""Tests what a pool is made of, which servers fit into its pods, and what is read from a claimed one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from guanaco.errors import InvalidSettings
from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.clusters.kubernetes.names import ORDERED
from guanaco_server.clusters.kubernetes.options import PodPool, checked_pools
from guanaco_server.clusters.kubernetes.pools.claimed import claimed_at, has_served
from guanaco_server.clusters.kubernetes.pools.manifests import (
    fits,
    pool_deployment,
    pool_policy,
    pool_secret,
)
from guanaco_server.formats.pool import PodOrder
from guanaco_server.settings import Settings
from tests.fixtures.manifest_checks import problems_in
from tests.unit.test_kubernetes_manifests import OPTIONS, with_uid

GIB = 2**30
H100 = Resources(memory_bytes=64 * GIB, disk_bytes=100 * GIB, gpu_type="H100", gpu_count=1, cpus=8)
POOLS = [PodPool("small", 2), PodPool("h100", 1, H100)]
SERVER = DeploymentSpec("m-tiny", (*OPTIONS.engine_command, "--artifact", "s3://models/ab"))


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_the_objects_of_a_pool_are_valid_and_confined(pool: PodPool) -> None:
    deployment = pool_deployment(pool, OPTIONS, "token")
    policy = pool_policy(pool, OPTIONS, with_uid(deployment))
    assert problems_in([deployment, policy, pool_secret(pool, "token")]) == []


def test_a_pools_pods_are_reached_by_the_platform_alone() -> None:
    policy = pool_policy(POOLS[0], OPTIONS, with_uid(pool_deployment(POOLS[0], OPTIONS, "token")))
    (ingress,) = policy["spec"]["ingress"]
    assert [port["port"] for port in ingress["ports"]] == [8000, 8001]
    assert ingress["from"][0]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "guanaco"}


def test_token_is_only_in_the_secret_and_changes_the_pods() -> None:
    one, other = (pool_deployment(POOLS[0], OPTIONS, token) for token in ("t0ken-1", "t0ken-2"))
    assert "t0ken" not in json.dumps([one, other])
    assert one["spec"]["template"]["metadata"] != other["spec"]["template"]["metadata"]


def test_a_version_that_knows_no_pools_does_not_see_one() -> None:
    deployment = pool_deployment(POOLS[0], OPTIONS, "token")
    labels = [
        deployment["metadata"]["labels"],
        deployment["spec"]["template"]["metadata"]["labels"],
    ]
    assert all(each["app.kubernetes.io/managed-by"] == "guanaco-pool" for each in labels)


@pytest.mark.parametrize(
    ("changes", "fitting"),
    [
        ({}, ["small"]),
        ({"resources": replace(H100, gpu_type=None)}, ["h100"]),
        ({"resources": H100}, ["h100"]),
        ({"resources": replace(H100, memory_bytes=65 * GIB)}, []),
        ({"resources": replace(H100, memory_bytes=8 * GIB)}, ["h100"]),
        ({"resources": replace(H100, gpu_count=2)}, []),
        ({"resources": replace(H100, gpu_type="MI300X")}, []),
        ({"resources": replace(H100, nodes=2)}, []),
        ({"resources": replace(H100, image="another:1")}, []),
        ({"resources": Resources(memory_bytes=1)}, []),
        ({"command": ("sh", "-c", "sleep 1")}, []),
        ({"queue": "gpus"}, []),
    ],
)
def test_server_fits_where_command_image_gpus_and_amounts_match(
    changes: dict[str, Any], fitting: list[str]
) -> None:
    spec = replace(SERVER, **changes)
    assert [pool.name for pool in POOLS if fits(pool, spec, OPTIONS)] == fitting


@pytest.mark.parametrize(
    ("ordered", "status", "since", "serves"),
    [
        (None, "True", "10:00:05Z", False),
        ("10:00:00Z", "True", "10:00:00Z", False),
        ("10:00:00Z", "False", "10:00:03Z", False),
        ("10:00:00Z", "True", "10:00:05Z", True),
        ("never", "True", "10:00:05Z", True),
    ],
)
def test_claimed_pod_serves_when_ready_since_its_order(
    ordered: str | None, status: str, since: str, serves: bool
) -> None:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
    metadata = {"annotations": {ORDERED: ordered} if ordered else {}}
    assert has_served({"metadata": metadata, "status": {"conditions": [ready]}}) is serves


def test_order_reads_back_as_written_and_others_are_refused() -> None:
    order = PodOrder("m-tiny", "ab", ("--port", "{port}"), {"A": "1"}, {"URL": "s3cret"}, 60.0)
    assert PodOrder.from_json(order.to_json()) == order
    assert "s3cret" not in repr(order)
    whole = json.loads(order.to_json())
    for wrong in (
        [],
        {},
        whole | {"arguments": [1]},
        whole | {"secrets": {"A": 1}},
        whole | {"environment": []},
    ):
        with pytest.raises(ValueError, match="no order"):
            PodOrder.from_json(json.dumps(wrong).encode())


def test_as_many_pods_wait_as_were_claimed_lately() -> None:
    pool = PodPool("small", 2, max_size=4)
    sizes = [
        pool_deployment(pool, OPTIONS, "t", claims)["spec"]["replicas"] for claims in (0, 3, 9)
    ]
    assert sizes == [2, 3, 4]
    assert pool_deployment(PodPool("small", 2), OPTIONS, "t", 9)["spec"]["replicas"] == 2


def test_a_pool_that_may_shrink_below_its_size_is_refused() -> None:
    small: Any = {"small": {"size": 3, "max_size": 2}}
    with pytest.raises(InvalidSettings, match="max_size 2, which is less than its size 3"):
        checked_pools(Settings(kubernetes_pools=small))


def test_a_pool_that_could_never_grow_is_refused() -> None:
    empty: Any = {"small": {"size": 0, "max_size": 5}}
    with pytest.raises(InvalidSettings, match="with size 0 no pod waits"):
        checked_pools(Settings(kubernetes_pools=empty))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-01T00:00:00+00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T00:00:00", None),
        ("yesterday", None),
    ],
)
def test_a_claims_time_is_read_if_it_is_whole(written: str, read: datetime | None) -> None:
    labels = {"guanaco.dev/from-pool": "small"}
    pod = {"metadata": {"labels": labels, "annotations": {"guanaco.dev/claimed-at": written}}}
    assert claimed_at(pod) == read
