"""The objects that jobs and model servers are made of, as manifests.

    job           Job        + NetworkPolicy, Secret
    model server  Deployment + NetworkPolicy, Service (where pods have no addresses), PodDisruptionBudget, Secret

A model over several machines has a LeaderWorkerSet in the Deployment's place (groups.py). The pods are in pods.py.
What is owned comes first, and then the pods: a new Deployment begins with no replicas, and a new Job suspended, until
its Secret and its network policy are there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict

from guanaco_server.clusters.cluster import NO_RESOURCES, DeploymentSpec, JobSpec, Resources
from guanaco_server.clusters.kubernetes.manifests.pod_fields import with_fields
from guanaco_server.clusters.kubernetes.manifests.pods import (
    PORT,
    SERVER_TMP_BYTES,
    cache_volume,
    command_in_pod,
    filled,
    near_affinity,
    pod_spec,
    without_cache,
)
from guanaco_server.clusters.kubernetes.names import (
    LEADER,
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

    The old pods are stopped first, because their GPUs may be the only ones. Otherwise what changed is not the spec but our
    manifest, and a pod serves until another one has taken its place.
    """
    unavailable, surge = ("100%", 0) if replaces_others else (0, 1)
    selector = pod_selector(spec)
    described = server_labels(spec, options)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": server_metadata(spec, described),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": int(start_s(spec) + options.pending_s),
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": described | queue_label(spec, options),
                    "annotations": annotated(spec.name, spec.submission_id),
                },
                "spec": server_pod(spec, options),
            },
        },
    }


def queue_label(spec: DeploymentSpec, options: KubernetesOptions) -> dict[str, str]:
    """Name Kueue's queue. A Deployment has the label in its pods, because its own could not be changed while pods are ready."""
    queue = spec.queue or options.queue
    return {QUEUE: queue} if queue else {}


def owned_objects(spec: DeploymentSpec, options: KubernetesOptions, owner: Json) -> list[Json]:
    """Return what the Deployment owns."""
    described = labels(spec.name, spec.submission_id, SERVER)
    pods = pod_selector(spec)
    metadata = {**server_metadata(spec, described), "ownerReferences": owned_by(owner)}
    ingress = {"from": [platform_pods(options)], "ports": [{"protocol": "TCP", "port": PORT}]}
    leaders = LEADER if spec.resources.nodes > 1 else {}
    selected = {**pods, SPEC: spec_hash(spec, options), **leaders}
    policy = network_policy(metadata, pods, [ingress], options.engine_egress)
    return [
        _with_each_other(policy, pods) if spec.resources.nodes > 1 else policy,
        *([] if options.has_replica_addresses else [_service(metadata, selected)]),
        _disruption_budget(metadata, pods, spec),
        secret_object(metadata, spec.secrets),
    ]


def secret_of(spec: DeploymentSpec, owner: Json) -> Json:
    """Return the Secret that its pods read when they start."""
    described = labels(spec.name, spec.submission_id, SERVER)
    metadata = {**server_metadata(spec, described), "ownerReferences": owned_by(owner)}
    return secret_object(metadata, spec.secrets)


def pod_selector(spec: DeploymentSpec) -> dict[str, str]:
    return {MANAGED_BY: MANAGER, NAME: label_value(spec.name)}


def server_labels(spec: DeploymentSpec, options: KubernetesOptions) -> dict[str, str]:
    """Return the labels of a model server's pods; those of one spec have the same."""
    return {**labels(spec.name, spec.submission_id, SERVER), SPEC: spec_hash(spec, options)}


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
        if value != getattr(NO_RESOURCES, name) or name not in _LATER_RESOURCES
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


def _with_each_other(policy: Json, pods: Mapping[str, str]) -> Json:
    """Let the pods of a group talk to each other on every port: NCCL and vLLM's ranks choose theirs."""
    peers = [{"podSelector": {"matchLabels": dict(pods)}}]
    ingress = [*policy["spec"]["ingress"], {"from": peers}]
    egress = [*policy["spec"]["egress"], {"to": peers}]
    return {**policy, "spec": {**policy["spec"], "ingress": ingress, "egress": egress}}


def _left_out(place: Egress) -> Json:
    """Return the private addresses within it; those that the operator names by themselves stay."""
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


_LATER_RESOURCES = ("cpus", "shared_memory_bytes", "cache_bytes", "nodes")
_NO_OTHER_POD = ("secrets", "replicas", "artifact_bytes", "submission_id", "queue", "near")


def server_metadata(spec: DeploymentSpec, described: Mapping[str, str]) -> Json:
    return {
        "name": object_name(spec.name),
        "labels": dict(described),
        "annotations": annotated(spec.name, spec.submission_id),
    }


def server_pod(
    spec: DeploymentSpec, options: KubernetesOptions, *, is_answering: bool = True
) -> Json:
    """Make the pod's spec. ``is_answering``: it has the port, as every pod but a group's workers."""
    resources = without_cache(filled(spec.resources, options.engine_defaults), options)
    answering: Json = {
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
        "startupProbe": _probe(failures=math.ceil(start_s(spec) / PROBE_PERIOD_S)),
        "readinessProbe": _probe(failures=2),
        "livenessProbe": _probe(failures=6),
    }
    container = {
        "image": resources.image or options.engine_image,
        "command": command_in_pod(spec.command),
        "environment": spec.environment,
        **(answering if is_answering else {}),
    }
    pod = {
        **pod_spec(
            container,
            object_name(spec.name),
            resources,
            options,
            SERVER_TMP_BYTES,
            cache=cache_volume(resources, options),
        ),
        "terminationGracePeriodSeconds": DRAIN_S + STOP_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": pod_selector(spec)},
            }
        ],
    }
    if options.cache_path and spec.near and spec.resources.nodes == 1:
        pod["affinity"] = near_affinity(spec.near)
    return with_fields(pod, options.server_fields)


def _probe(failures: int) -> Json:
    """Make a probe of /health. The platform checks whether the model generates."""
    return {
        "httpGet": {"path": "/health", "port": PORT},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def start_s(spec: DeploymentSpec) -> float:
    """Return how long the server may take to answer."""
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


def _disruption_budget(metadata: Json, pods: Mapping[str, str], spec: DeploymentSpec) -> Json:
    """Allow one pod at a time to be evicted, so that a single replica does not block draining a machine.

    ``maxUnavailable`` counts by the replicas of the pods' controllers, and a Deployment's leave out the pods that it
    claimed from a pool: with none but these, no pod could be evicted.
    """
    is_grouped = spec.resources.nodes > 1
    most = {"maxUnavailable": 1} if is_grouped else {"minAvailable": max(0, spec.replicas - 1)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {**most, "selector": {"matchLabels": dict(pods)}},
    }


def platform_pods(options: KubernetesOptions) -> Json:
    peer: Json = {"podSelector": {"matchLabels": PLATFORM_LABELS}}
    if options.platform_namespace and options.platform_namespace != options.namespace:
        peer["namespaceSelector"] = {
            "matchLabels": {"kubernetes.io/metadata.name": options.platform_namespace}
        }
    return peer


JOB_COMPONENT = "job"
JOB_STOP_S = 10
KEPT_S = 600  # what a platform that was killed left behind goes by itself
LOST_PODS = 5  # the number of machines that may be lost, or drained, under one job


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
