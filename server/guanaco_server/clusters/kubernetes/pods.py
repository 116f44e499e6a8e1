"""The pod that a job or a model server runs in: nobody's root, nothing writable but two empty folders, no API token.

It satisfies the Pod Security Standard `restricted`. Its environment comes from a Secret that is applied last,
so that nothing runs before its network policy is there.
"""

from __future__ import annotations

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import Resources
from guanaco_server.clusters.kubernetes.names import Json
from guanaco_server.clusters.kubernetes.options import KubernetesOptions

UID = 10_001
CONTAINER = "main"
CACHE = "/cache"  # where a model server may keep its artifact
TMP = "/tmp"  # noqa: S108 - an empty folder of the pod's own
HOST, PORT = "0.0.0.0", 8000  # noqa: S104 - within the pod; the network policy says who reaches it
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"


def pod_spec(
    container: Json, secret: str, resources: Resources, options: KubernetesOptions
) -> Json:
    """``container`` has what differs: image, command, environment, probes."""
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
        "volumes": _volumes(resources),
    }
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if resources.gpu_count:
        spec |= _gpu_placement(resources, options)
    return spec


def command_in_pod(command: tuple[str, ...]) -> list[str]:
    """With the host and the port filled in; ``$(NAME)`` stays what it is."""
    filled_in = (part.replace("{port}", str(PORT)).replace("{host}", HOST) for part in command)
    return [_literal(part) for part in filled_in]


def gpu_resource(gpu_type: str | None) -> str:
    """AMD's accelerators are called MI…"""
    return AMD if (gpu_type or "").upper().startswith("MI") else NVIDIA


def filled(resources: Resources, defaults: Resources) -> Resources:
    """What is not asked for is as the operator set it."""
    return Resources(
        memory_bytes=resources.memory_bytes or defaults.memory_bytes,
        disk_bytes=resources.disk_bytes or defaults.disk_bytes,
        gpu_type=resources.gpu_type or defaults.gpu_type,
        gpu_count=resources.gpu_count or defaults.gpu_count,
        image=resources.image or defaults.image,
    )


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
    """Requests are limits: what is promised is there. Quantities are whole bytes."""
    asked: dict[str, str] = {}
    if resources.memory_bytes:
        asked["memory"] = str(resources.memory_bytes)
    if resources.disk_bytes:
        asked["ephemeral-storage"] = str(resources.disk_bytes)
    if resources.gpu_count:
        asked[gpu_resource(resources.gpu_type)] = str(resources.gpu_count)
    return {"requests": dict(asked), "limits": asked} if asked else {}


def _volumes(resources: Resources) -> list[Json]:
    limit = {"sizeLimit": str(resources.disk_bytes)} if resources.disk_bytes else {}
    shared_memory = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": limit},
        *(shared_memory if resources.gpu_count else []),
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
