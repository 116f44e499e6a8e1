"""The objects of a pool: a Deployment of pods that wait for a model, a NetworkPolicy for them, and the Secret of their token.

The labels decide whose a pod is. ``guanaco.dev/pool`` and the manager ``guanaco-pool`` are what the Deployment selects by; a
claim removes the one and changes the other. ``guanaco.dev/from-pool`` stays, and with it the NetworkPolicy by which the
platform reaches the pod's control port: a new policy would hold only some time after the claim.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import datetime
from typing import Any

from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.clusters.kubernetes.manifests.objects import (
    DRAIN_S,
    START_S,
    STOP_S,
    network_policy,
    platform_pods,
    secret_object,
    server_labels,
)
from guanaco_server.clusters.kubernetes.manifests.pod_fields import with_fields
from guanaco_server.clusters.kubernetes.manifests.pods import (
    CACHE,
    CACHE_SLACK_BYTES,
    CONTROL_PORT,
    PORT,
    SERVER_TMP_BYTES,
    cache_volume,
    command_in_pod,
    filled,
    pod_spec,
    without_cache,
)
from guanaco_server.clusters.kubernetes.names import (
    CLAIMED_AT,
    COMPONENT,
    FROM_POOL,
    MANAGED_BY,
    POOL,
    POOL_MANAGER,
    SPEC,
    WAITED,
    Json,
    annotated,
    owned_by,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions, PodPool
from guanaco_server.clusters.kubernetes.pools.claimed import NEVER, ready_since
from guanaco_server.formats.pool import (
    ALIVE_PATH,
    READY_PATH,
    STARTED_PATH,
    TOKEN_VARIABLE,
    UNREADY_PROBES,
)

KEEPER = "guanaco_server.engine.pool.keeper"
ORDERS, ORDERS_BYTES = "/orders", 16 * 1024**2
TEMPLATE_HASH = "pod-template-hash"  # of the pool's ReplicaSet
IMPORTS_S = 2 * START_S
READY_PERIOD_S, ALIVE_PERIOD_S = 1, 5


def pool_name(pool: str) -> str:
    return f"guanaco-pool-{pool}"


def pool_deployment(pool: PodPool, options: KubernetesOptions, token: str, claims: int = 0) -> Json:
    """Make the Deployment, ``claims`` being those of late. Another ``token`` makes other pods, because they know it from their start."""
    selector = {MANAGED_BY: POOL_MANAGER, POOL: pool.name}
    described = selector | {COMPONENT: "pool", FROM_POOL: pool.name}
    pod = _pod(pool, options)
    spec = _hash([pod, hashlib.sha256(token.encode()).hexdigest()])
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pool) | {"labels": described | {SPEC: spec}},
        "spec": {
            "replicas": pool.size_after(claims),
            "revisionHistoryLimit": 1,
            # Where GPUs are scarce, none is free for a second pod beside the first.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"},
            },
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": described | {SPEC: spec}}, "spec": pod},
        },
    }


def pool_policy(pool: PodPool, options: KubernetesOptions, owner: Json) -> Json:
    """Make the NetworkPolicy of its pods, which holds for claimed ones too."""
    ports = [{"protocol": "TCP", "port": port} for port in (PORT, CONTROL_PORT)]
    ingress = [{"from": [platform_pods(options)], "ports": ports}]
    metadata = _metadata(pool) | {"ownerReferences": owned_by(owner)}
    return network_policy(metadata, {FROM_POOL: pool.name}, ingress, options.engine_egress)


def pool_secret(pool: PodPool, token: str) -> Json:
    """Make the Secret. It is nobody's: a claimed pod that starts again finds it when the pool is gone."""
    return secret_object(_metadata(pool), {TOKEN_VARIABLE: token})


def named_secret(pool: PodPool) -> Json:
    """Name the Secret and say nothing of its data: applied, it answers with them."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(pool)}


def claim_of(
    pod: Json, spec: DeploymentSpec, options: KubernetesOptions, owner: Json, now: datetime
) -> Json:
    """Make the change by which a waiting pod becomes one of a server. It is refused if the pod has changed meanwhile."""
    return {
        "metadata": {
            "uid": pod["metadata"]["uid"],
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "labels": {POOL: None, TEMPLATE_HASH: None, **server_labels(spec, options)},
            "annotations": {
                **annotated(spec.name, spec.submission_id),
                WAITED: ready_since(pod) or NEVER,
                CLAIMED_AT: now.isoformat(timespec="seconds"),
            },
            "ownerReferences": owned_by(owner),
        }
    }


def fits(pool: PodPool, spec: DeploymentSpec, options: KubernetesOptions) -> bool:
    """Tell whether a pod of the pool can be this server: the engine's own command, the same image and GPUs, and no less of the rest."""
    asked = without_cache(filled(spec.resources, options.engine_defaults), options)
    given = without_cache(filled(pool.resources, options.engine_defaults), options)
    command = options.engine_command
    return (
        spec.command[: len(command)] == command
        and asked.nodes == 1
        and not (spec.queue or options.queue)
        and (asked.image or options.engine_image) == (given.image or options.engine_image)
        and asked.gpu_count == given.gpu_count
        and asked.gpu_type in (None, given.gpu_type)
        and all(_has(given, asked, name) for name in _AMOUNTS)
        and (asked.cache_bytes or 0) <= _cache_bytes(given, options)
    )


_AMOUNTS = ("memory_bytes", "disk_bytes", "shared_memory_bytes", "cpus")


def _has(given: Resources, asked: Resources, name: str) -> bool:
    return (getattr(given, name) or 0) >= (getattr(asked, name) or 0)


def _cache_bytes(given: Resources, options: KubernetesOptions) -> float:
    if options.cache_claim or options.cache_path:
        return math.inf
    return given.cache_bytes or given.disk_bytes or options.cache_bytes + CACHE_SLACK_BYTES


def _metadata(pool: PodPool) -> Json:
    labels = {MANAGED_BY: POOL_MANAGER, COMPONENT: "pool", FROM_POOL: pool.name}
    return {"name": pool_name(pool.name), "labels": labels}


def _pod(pool: PodPool, options: KubernetesOptions) -> Json:
    resources = without_cache(filled(pool.resources, options.engine_defaults), options)
    cache = cache_volume(resources, options)
    name = pool_name(pool.name)
    pod = pod_spec(
        _container(resources, options), name, resources, options, SERVER_TMP_BYTES, cache
    )
    (container,) = pod["containers"]
    # A claimed pod that starts again needs no token: its order is in its own folder.
    container["envFrom"] = [{"secretRef": {"name": name, "optional": True}}]
    container["volumeMounts"].append({"name": "orders", "mountPath": ORDERS})
    in_memory = {"medium": "Memory", "sizeLimit": str(ORDERS_BYTES)}
    pod["volumes"].append({"name": "orders", "emptyDir": in_memory})
    further = {
        "terminationGracePeriodSeconds": DRAIN_S + STOP_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {POOL: pool.name}},
            }
        ],
    }
    return with_fields(pod | further, options.server_fields)


def _container(resources: Resources, options: KubernetesOptions) -> Json:
    command = (
        *(options.engine_command[0], "-m", KEEPER),
        *("--orders", ORDERS),
        *("--cache-dir", CACHE),
        *("--host", "{host}"),
        *("--port", "{port}"),
        *("--control-port", str(CONTROL_PORT)),
        *("--warm-module", options.warm_module),
    )
    ports = {"http": PORT, "control": CONTROL_PORT}
    return {
        "image": resources.image or options.engine_image,
        "command": command_in_pod(command),
        "environment": {},
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
        "startupProbe": _probe(STARTED_PATH, ALIVE_PERIOD_S, IMPORTS_S // ALIVE_PERIOD_S),
        "readinessProbe": _probe(READY_PATH, READY_PERIOD_S, UNREADY_PROBES),
        "livenessProbe": _probe(ALIVE_PATH, ALIVE_PERIOD_S, 6),
    }


def _probe(path: str, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": CONTROL_PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _hash(made_of: Any) -> str:
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
