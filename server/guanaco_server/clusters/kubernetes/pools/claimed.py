"""Reads the state of pods that were claimed from a pool (pools.py).

    waiting ── claimed: labels and owner change in one step ── ordered: it was given its model ──▶ served

A claimed pod belongs to its server's Deployment itself, beside the pods of the Deployment's ReplicaSet. It was ready before,
while it waited: it serves when it has become ready again since it was ordered, by the time that its kubelet wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from guanaco_server.clusters.kubernetes.names import (
    ASKED_REPLICAS,
    CLAIMED_AT,
    FROM_POOL,
    ORDERED,
    POOL,
    SPEC,
    Json,
)
from guanaco_server.clusters.kubernetes.options import PodPool

NEVER = "never"


def is_claimed(pod: Json) -> bool:
    labels = pod["metadata"].get("labels", {})
    return FROM_POOL in labels and POOL not in labels


def takes_orders(pod: Json, pools: Iterable[PodPool]) -> bool:
    """Tell whether it was claimed and may be given another model. The token for that is of its pool, and is gone with it."""
    pool = pod["metadata"].get("labels", {}).get(FROM_POOL)
    return is_claimed(pod) and any(one.name == pool for one in pools)


def is_owned(pod: Json, deployment: Json) -> bool:
    """Tell whether it was claimed for this Deployment."""
    owners = {owner.get("uid") for owner in pod["metadata"].get("ownerReferences", [])}
    return is_claimed(pod) and deployment["metadata"]["uid"] in owners


def is_claimed_for(pod: Json, deployment: Json, spec: str) -> bool:
    """Tell whether it was claimed for this Deployment, to be a server of this spec."""
    return is_owned(pod, deployment) and pod["metadata"]["labels"].get(SPEC) == spec


def is_ordered(pod: Json) -> bool:
    return ORDERED in pod["metadata"].get("annotations", {})


def claimed_at(pod: Json) -> datetime | None:
    """Return when the pod was claimed; None for one that waits, or that an earlier version claimed."""
    timestamp = pod["metadata"].get("annotations", {}).get(CLAIMED_AT)
    try:
        at = datetime.fromisoformat(timestamp) if is_claimed(pod) and timestamp else None
    except ValueError:  # somebody has written it
        return None
    return at if at is not None and at.tzinfo is not None else None


def has_served(pod: Json) -> bool:
    """Tell whether it is ready by what it was ordered to be."""
    since = ready_since(pod)
    return (
        since is not None and is_ordered(pod) and pod["metadata"]["annotations"][ORDERED] != since
    )


def ready_since(pod: Json) -> str | None:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition.get("type") == "Ready" and condition.get("status") == "True":
            return str(condition.get("lastTransitionTime", NEVER))
    return None


def asked_replicas(deployment: Json) -> int:
    """Return how many replicas the server is to have, those that were claimed included."""
    asked = deployment["metadata"].get("annotations", {}).get(ASKED_REPLICAS)
    return int(asked if asked is not None else deployment["spec"].get("replicas", 1))
