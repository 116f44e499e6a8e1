"""The pods of jobs and model servers: one container, what it asks for, its volumes, and where it may run.

Pods satisfy the Pod Security Standard `restricted`: not root, nothing writable but empty folders, no API token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import Resources
from guanaco_server.clusters.kubernetes.names import Json
from guanaco_server.clusters.kubernetes.options import KubernetesOptions

UID = 10_001
CONTAINER = "main"
CACHE = "/cache"  # where a model server may keep its artifact
TMP = "/tmp"  # noqa: S108 - an empty folder of the pod's own
CONTROL_PORT = 8001  # of a pool's pod
HOST, PORT = "0.0.0.0", 8000  # noqa: S104 - within the pod; the network policy says who reaches it
SERVER_TMP_BYTES = 8 * 1024**3  # small files of the model, and what the compilers keep
CACHE_SLACK_BYTES = 1024**3
SHARED_MEMORY_BYTES = 16 * 1024**3
NEAR_WEIGHT = 100  # of 100; a GPU's kind is no preference but required
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"


def pod_spec(
    container: Json,
    secret: str,
    resources: Resources,
    options: KubernetesOptions,
    tmp_bytes: int,
    cache: Json | None = None,
) -> Json:
    """``container`` has what differs: image, command, environment, probes; ``tmp_bytes`` is the most that /tmp may hold.

    ``cache`` is the volume of a model server's artifacts; a job has an empty one.
    """
    spec: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(container, secret, resources)],
        "volumes": _volumes(resources, tmp_bytes, cache or _empty_cache(resources, options)),
        "tolerations": [
            _toleration("unreachable", UNREACHABLE_S),
            _toleration("not-ready", NOT_READY_S),
        ],
    }
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if resources.gpu_count:
        placement = _gpu_placement(resources, options)
        spec |= placement | {"tolerations": spec["tolerations"] + placement["tolerations"]}
    return spec


UNREACHABLE_S = 5  # the node's controller has waited 40 to 50 s for its kubelet by then
NOT_READY_S = 30  # a container runtime that is restarted is back within that


def _toleration(taint: str, seconds: int) -> Json:
    """Tolerate a lost node's taint this long, instead of the default 300 s: then the pod is replaced elsewhere."""
    return {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }


# Variables that LeaderWorkerSet puts into the environment of a group's containers.
GROUP_VARIABLES = {"{leader}": "$(LWS_LEADER_ADDRESS)", "{rank}": "$(LWS_WORKER_INDEX)"}


def command_in_pod(command: tuple[str, ...]) -> list[str]:
    """Fill in host and port, and keep Kubernetes from replacing any ``$(NAME)`` but a group's own."""
    filled_in = (part.replace("{port}", str(PORT)).replace("{host}", HOST) for part in command)
    return [GROUP_VARIABLES.get(part) or _literal(part) for part in filled_in]


def gpu_resource(gpu_type: str | None) -> str:
    """Return the resource's name. AMD's accelerators are called MI…"""
    return AMD if (gpu_type or "").upper().startswith("MI") else NVIDIA


def filled(resources: Resources, defaults: Resources) -> Resources:
    """Fill in the operator's defaults for what the spec leaves open."""
    given = {field.name: getattr(resources, field.name) for field in fields(Resources)}
    return replace(defaults, **{name: value for name, value in given.items() if value})


def near_affinity(machines: Sequence[str]) -> Json:
    """Prefer these machines, the first the most. Where none has room, the pod runs anywhere."""
    terms = [
        {
            "weight": max(1, NEAR_WEIGHT - place),
            "preference": {
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": [machine]}]
            },
        }
        for place, machine in enumerate(machines)
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def affinity_of(workload: Json) -> Json:
    """Return the preferences of a Deployment's pods; those of a group of pods are not ours."""
    pod = workload["spec"].get("template", {}).get("spec", {})
    return dict(pod.get("affinity") or {})


def place_object(workload: Json, affinity: Json) -> Json:
    """Make what is applied of a Deployment to own nothing but its pods' preferences."""
    pod = {"affinity": affinity} if affinity else {}
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": {"name": workload["metadata"]["name"]},
        "spec": {"template": {"spec": pod}},
    }


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


def near_of(pod: Json, operators: Mapping[str, Any] = NO_FIELDS) -> tuple[str, ...]:
    """Return the machines that ``near_affinity`` has this pod's spec prefer, beside what the ``operators`` fields of every pod do."""
    theirs = _preferred(operators)
    ours = [term["preference"] for term in _preferred(pod) if term not in theirs]
    fields = [one for preference in ours for one in preference.get("matchFields", [])]
    return tuple(
        one["values"][0]
        for one in fields
        if one["key"] == "metadata.name" and one["operator"] == "In"
    )


def _preferred(pod: Mapping[str, Any]) -> list[Json]:
    node = pod.get("affinity", {}).get("nodeAffinity", {})
    return list(node.get("preferredDuringSchedulingIgnoredDuringExecution", []))


def _container(container: Json, secret: str, resources: Resources) -> Json:
    environment = {"HOME": TMP, "TMPDIR": TMP} | container["environment"]
    further = {name: value for name, value in container.items() if name != "environment"}
    return {
        "name": CONTAINER,
        "env": [{"name": name, "value": _literal(value)} for name, value in environment.items()],
        "envFrom": [{"secretRef": {"name": secret}}],
        "resources": _asked(resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": TMP},
            {"name": "cache", "mountPath": CACHE},
            *([{"name": "shm", "mountPath": "/dev/shm"}] if resources.gpu_count else []),  # noqa: S108
        ],
        **further,
    }


def _literal(text: str) -> str:
    return text.replace("$(", "$$(")


def _asked(resources: Resources) -> Json:
    """Make requests and limits, which are equal; CPUs have no limit, for idle ones may be used. Quantities are whole bytes."""
    asked: dict[str, str] = {}
    if resources.memory_bytes:
        asked["memory"] = str(resources.memory_bytes)
    if resources.disk_bytes:
        asked["ephemeral-storage"] = str(resources.disk_bytes)
    if resources.gpu_count:
        asked[gpu_resource(resources.gpu_type)] = str(resources.gpu_count)
    requests = asked | ({"cpu": str(resources.cpus)} if resources.cpus else {})
    limits = {"limits": asked} if asked else {}
    return {"requests": requests, **limits} if requests else {}


def without_cache(resources: Resources, options: KubernetesOptions) -> Resources:
    """Ask for no storage of the pod's own for an artifact that is kept elsewhere."""
    if not (options.cache_claim or options.cache_path) or not resources.disk_bytes:
        return resources
    cached = resources.cache_bytes or resources.disk_bytes
    return replace(resources, disk_bytes=resources.disk_bytes - cached, cache_bytes=None)


def cache_volume(resources: Resources, options: KubernetesOptions) -> Json:
    """Return where a model server keeps its artifact: by default in a folder that goes with the pod."""
    if options.cache_claim:
        return {"persistentVolumeClaim": {"claimName": options.cache_claim}}
    if options.cache_path:
        return {"hostPath": {"path": options.cache_path, "type": "Directory"}}
    return _empty_cache(resources, options)


def _empty_cache(resources: Resources, options: KubernetesOptions) -> Json:
    default = options.cache_bytes + CACHE_SLACK_BYTES
    return {
        "emptyDir": {"sizeLimit": str(resources.cache_bytes or resources.disk_bytes or default)}
    }


def _volumes(resources: Resources, tmp_bytes: int, cache: Json) -> list[Json]:
    """Give each of the pod's own volumes a limit. A pod that exceeds one is evicted, so it cannot fill the node's disk."""
    shared_bytes = resources.shared_memory_bytes or SHARED_MEMORY_BYTES
    shared_memory = {"medium": "Memory", "sizeLimit": str(shared_bytes)}
    return [
        {"name": "tmp", "emptyDir": {"sizeLimit": str(tmp_bytes)}},
        {"name": "cache", **cache},
        *([{"name": "shm", "emptyDir": shared_memory}] if resources.gpu_count else []),
    ]


def _gpu_placement(resources: Resources, options: KubernetesOptions) -> Json:
    resource = gpu_resource(resources.gpu_type)
    placement: Json = {
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    }
    if resources.gpu_type and options.gpu_nodes:
        if resources.gpu_type not in options.gpu_nodes:
            raise ClusterRefused(
                f"This cluster has no {resources.gpu_type} GPU.",
                hint="The operator names its GPUs in kubernetes_gpu_nodes.",
            )
        placement["nodeSelector"] = dict(options.gpu_nodes[resources.gpu_type])
    return placement
