"""The objects that jobs and model servers are made of, as manifests.

    job           Job        + NetworkPolicy, Secret
    model server  Deployment + NetworkPolicy, Service (where pods have no addresses), PodDisruptionBudget, Secret

What is owned comes first, and then the pods: a new Deployment begins with no replicas, and a new Job suspended, until
its Secret and its network policy are there. Pods satisfy the Pod Security Standard `restricted`: not root, nothing
writable but two empty folders, no API token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import DeploymentSpec, JobSpec, Resources
from guanaco_server.clusters.kubernetes.names import (
    MANAGED_BY,
    MANAGER,
    NAME,
    QUEUE,
    SPEC,
    WORKER,
    Json,
    annotated,
    label_value,
    labels,
    object_name,
    owned_by,
)
from guanaco_server.clusters.kubernetes.options import Egress, KubernetesOptions
from guanaco_server.clusters.kubernetes.pod_fields import with_fields

SERVER = "model-server"
PLATFORM_LABELS = {"app.kubernetes.io/name": "guanaco"}
START_S = 180  # imports, CUDA graphs and the first kernels, whatever the model's size
LOAD_BYTES_PER_S = 50e6  # a slow network's; a fast one takes a tenth
PROBE_PERIOD_S = 5
DRAIN_S = 5  # until every gateway and proxy knows that it is leaving
STOP_S = 30


def deployment_object(
    spec: DeploymentSpec, options: KubernetesOptions, *, replaces_others: bool = False
) -> Json:
    """Make the Deployment. ``replaces_others``: pods of another spec are there, which get no requests any more.

    Those are stopped first, because their GPUs may be the only ones. Otherwise what changed is not the spec but our
    manifest, and a pod serves until another one has taken its place.
    """
    unavailable, surge = ("100%", 0) if replaces_others else (0, 1)
    selector = {MANAGED_BY: MANAGER, NAME: label_value(spec.name)}
    described = {**labels(spec.name, spec.submission_id, SERVER), SPEC: spec_hash(spec, options)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(spec, described),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": int(_start_s(spec) + options.pending_s),
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": described | _queued(options),
                    "annotations": annotated(spec.name, spec.submission_id),
                },
                "spec": _pod(spec, options, selector),
            },
        },
    }


def _queued(options: KubernetesOptions) -> dict[str, str]:
    """Label the pods for Kueue. The Deployment has no such label, because its queue could not be changed while pods are ready."""
    return {QUEUE: options.queue} if options.queue else {}


def owned_objects(spec: DeploymentSpec, options: KubernetesOptions, owner: Json) -> list[Json]:
    """Return what the Deployment owns."""
    described = labels(spec.name, spec.submission_id, SERVER)
    pods = {MANAGED_BY: MANAGER, NAME: label_value(spec.name)}
    metadata = {**_metadata(spec, described), "ownerReferences": owned_by(owner)}
    ingress = {"from": [_platform_pods(options)], "ports": [{"protocol": "TCP", "port": PORT}]}
    selected = {**pods, SPEC: spec_hash(spec, options)}
    return [
        network_policy(metadata, pods, [ingress], options.engine_egress),
        *([] if options.has_replica_addresses else [_service(metadata, selected)]),
        _disruption_budget(metadata, pods),
        secret_object(metadata, spec.secrets),
    ]


def secret_of(spec: DeploymentSpec, owner: Json) -> Json:
    """Return the Secret that its pods read when they start."""
    described = labels(spec.name, spec.submission_id, SERVER)
    metadata = {**_metadata(spec, described), "ownerReferences": owned_by(owner)}
    return secret_object(metadata, spec.secrets)


def spec_hash(spec: DeploymentSpec, options: KubernetesOptions) -> str:
    """Hash everything that changes a pod. Secrets and the number of replicas do not."""
    made_of = {
        **{name: value for name, value in asdict(spec).items() if name not in _NO_OTHER_POD},
        "resources": _as_hashed(spec.resources),
        "image": spec.resources.image or options.engine_image,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _as_hashed(resources: Resources) -> Json:
    """Leave out what is open and was unknown before, so that a new version restarts no server."""
    return {
        name: value
        for name, value in asdict(resources).items()
        if value is not None or name not in _LATER_RESOURCES
    }


def network_policy(
    metadata: Json, pods: Mapping[str, str], ingress: list[Json], egress: tuple[Egress, ...]
) -> Json:
    """Make the NetworkPolicy. DNS is always allowed."""
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    allowed = [
        {
            "to": [{"ipBlock": {"cidr": place.cidr, **_left_out(place)}}],
            "ports": [{"protocol": "TCP", "port": place.port}],
        }
        for place in egress
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": dict(pods)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": [dns, *allowed],
        },
    }


def _left_out(place: Egress) -> Json:
    """The private addresses within it; those that the operator names by themselves stay."""
    return {"except": list(place.private)} if place.private else {}


def secret_object(metadata: Json, secrets: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": {
            name: base64.b64encode(value.encode()).decode() for name, value in secrets.items()
        },
    }


_LATER_RESOURCES = ("cpus", "shared_memory_bytes", "cache_bytes")
_NO_OTHER_POD = ("secrets", "replicas", "artifact_bytes", "submission_id")


def _metadata(spec: DeploymentSpec, described: Mapping[str, str]) -> Json:
    return {
        "name": object_name(spec.name),
        "labels": dict(described),
        "annotations": annotated(spec.name, spec.submission_id),
    }


def _pod(spec: DeploymentSpec, options: KubernetesOptions, selector: Mapping[str, str]) -> Json:
    resources = _without_cache(filled(spec.resources, options.engine_defaults), options)
    container = {
        "image": resources.image or options.engine_image,
        "command": command_in_pod(spec.command),
        "environment": spec.environment,
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
        "startupProbe": _probe(failures=math.ceil(_start_s(spec) / PROBE_PERIOD_S)),
        "readinessProbe": _probe(failures=2),
        "livenessProbe": _probe(failures=6),
    }
    pod = {
        **pod_spec(
            container,
            object_name(spec.name),
            resources,
            options,
            SERVER_TMP_BYTES,
            cache=_cache_volume(resources, options),
        ),
        "terminationGracePeriodSeconds": DRAIN_S + STOP_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(selector)},
            }
        ],
    }
    return with_fields(pod, options.server_fields)


def _probe(failures: int) -> Json:
    """Make a probe of /health. Whether the model generates is checked by the platform."""
    return {
        "httpGet": {"path": "/health", "port": PORT},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _start_s(spec: DeploymentSpec) -> float:
    return START_S + spec.artifact_bytes / LOAD_BYTES_PER_S


def _service(metadata: Json, pods: Mapping[str, str]) -> Json:
    """Make the Service. It selects the pods of the present spec only."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "selector": dict(pods),
            "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": PORT}],
        },
    }


def _disruption_budget(metadata: Json, pods: Mapping[str, str]) -> Json:
    """Allow one pod at a time to be evicted, so that a single replica does not block draining a machine."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(pods)}},
    }


def _platform_pods(options: KubernetesOptions) -> Json:
    peer: Json = {"podSelector": {"matchLabels": PLATFORM_LABELS}}
    if options.platform_namespace and options.platform_namespace != options.namespace:
        peer["namespaceSelector"] = {
            "matchLabels": {"kubernetes.io/metadata.name": options.platform_namespace}
        }
    return peer


JOB_COMPONENT = "job"
JOB_STOP_S = 10
KEPT_S = 600  # what a platform that was killed left behind goes by itself
LOST_PODS = 5  # so many machines may be lost, or drained, under one job


def job_object(spec: JobSpec, options: KubernetesOptions, *, is_suspended: bool = False) -> Json:
    """Make the Job. A pod whose machine is lost or drained is made again by the cluster.

    One that fails by itself ends the Job too, but through the platform (``jobs.py``), which reads its last lines. A
    podFailurePolicy would tell the two apart here, but with one Kubernetes replaces a pod only when its kubelet says
    that it ended: a lost node's never.
    """
    resources = filled(spec.resources, options.job_defaults)
    container = {
        "image": resources.image or options.serializer_image,
        "command": command_in_pod(spec.command),
        "environment": spec.environment,
    }
    job: Json = {
        "backoffLimit": LOST_PODS,
        "suspend": is_suspended,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {
            "metadata": {
                "labels": _job_labels(spec, options),
                "annotations": annotated(spec.name, spec.submission_id),
            },
            "spec": with_fields(
                {
                    **pod_spec(
                        container, object_name(spec.name), resources, options, options.job_tmp_bytes
                    ),
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": JOB_STOP_S,
                },
                options.job_fields,
            ),
        },
    }
    if spec.timeout_s is not None:
        job["activeDeadlineSeconds"] = max(1, math.ceil(spec.timeout_s))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _job_metadata(spec, options),
        "spec": job,
    }


def owned_by_job(spec: JobSpec, options: KubernetesOptions, owner: Json) -> list[Json]:
    """Return what the Job owns."""
    metadata = {**_job_metadata(spec, options), "ownerReferences": owned_by(owner)}
    pods = {MANAGED_BY: MANAGER, NAME: label_value(spec.name)}
    return [
        network_policy(metadata, pods, [], options.serializer_egress),
        secret_object(metadata, spec.secrets),
    ]


def _job_metadata(spec: JobSpec, options: KubernetesOptions) -> Json:
    return {
        "name": object_name(spec.name),
        "labels": _job_labels(spec, options),
        "annotations": annotated(spec.name, spec.submission_id),
    }


def _job_labels(spec: JobSpec, options: KubernetesOptions) -> dict[str, str]:
    described = labels(spec.name, spec.submission_id, JOB_COMPONENT)
    return {**described, WORKER: label_value(options.worker)}


UID = 10_001
CONTAINER = "main"
CACHE = "/cache"  # where a model server may keep its artifact
TMP = "/tmp"  # noqa: S108 - an empty folder of the pod's own
HOST, PORT = "0.0.0.0", 8000  # noqa: S104 - within the pod; the network policy says who reaches it
SERVER_TMP_BYTES = 8 * 1024**3  # small files of the model, and what the compilers keep
CACHE_SLACK_BYTES = 1024**3
SHARED_MEMORY_BYTES = 16 * 1024**3
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
            _briefly_tolerated("unreachable", UNREACHABLE_S),
            _briefly_tolerated("not-ready", NOT_READY_S),
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


def _briefly_tolerated(taint: str, seconds: int) -> Json:
    """Tolerate a lost node's taint this long, instead of the default 300 s: then the pod is replaced elsewhere."""
    return {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }


def command_in_pod(command: tuple[str, ...]) -> list[str]:
    """Fill in host and port, and keep Kubernetes from replacing ``$(NAME)``."""
    filled_in = (part.replace("{port}", str(PORT)).replace("{host}", HOST) for part in command)
    return [_literal(part) for part in filled_in]


def gpu_resource(gpu_type: str | None) -> str:
    """Return the resource's name. AMD's accelerators are called MI…"""
    return AMD if (gpu_type or "").upper().startswith("MI") else NVIDIA


def filled(resources: Resources, defaults: Resources) -> Resources:
    """Fill in the operator's defaults for what the spec leaves open."""
    given = {field.name: getattr(resources, field.name) for field in fields(Resources)}
    return replace(defaults, **{name: value for name, value in given.items() if value})


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


def _without_cache(resources: Resources, options: KubernetesOptions) -> Resources:
    """Ask for no storage of the pod's own for an artifact that is kept elsewhere."""
    if not (options.cache_claim or options.cache_path) or not resources.disk_bytes:
        return resources
    cached = resources.cache_bytes or resources.disk_bytes
    return replace(resources, disk_bytes=resources.disk_bytes - cached, cache_bytes=None)


def _cache_volume(resources: Resources, options: KubernetesOptions) -> Json:
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
