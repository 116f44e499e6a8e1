"""The objects of one model server: a Deployment, and what it owns."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict

from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.names import (
    MANAGED_BY,
    MANAGER,
    NAME,
    SPEC,
    Json,
    annotated,
    label_value,
    labels,
    object_name,
    owned_by,
)
from guanaco_server.clusters.kubernetes.options import Egress, KubernetesOptions
from guanaco_server.clusters.kubernetes.pods import (
    PORT,
    command_in_pod,
    filled,
    pod_spec,
)

SERVER = "model-server"
PLATFORM_LABELS = {"app.kubernetes.io/name": "guanaco"}
START_S = 180  # imports, CUDA graphs and the first kernels, whatever the model's size
LOAD_BYTES_PER_S = 50e6  # a slow network's; a fast one takes a tenth
PROBE_PERIOD_S = 5
DRAIN_S = 5  # until every gateway and proxy knows that it is leaving
STOP_S = 30


def deployment_object(spec: DeploymentSpec, options: KubernetesOptions) -> Json:
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
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": described,
                    "annotations": annotated(spec.name, spec.submission_id),
                },
                "spec": _pod(spec, options, selector),
            },
        },
    }


def owned_objects(spec: DeploymentSpec, options: KubernetesOptions, owner: Json) -> list[Json]:
    """In the order to apply them: the Secret last, for pods wait for it."""
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


def spec_hash(spec: DeploymentSpec, options: KubernetesOptions) -> str:
    """Of all that makes another pod; not of secrets, and not of how many there are."""
    made_of = {
        **{name: value for name, value in asdict(spec).items() if name not in _NO_OTHER_POD},
        "image": spec.resources.image or options.engine_image,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def network_policy(
    metadata: Json, pods: Mapping[str, str], ingress: list[Json], egress: tuple[Egress, ...]
) -> Json:
    """DNS may always be asked."""
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    allowed = [
        {
            "to": [{"ipBlock": {"cidr": place.cidr}}],
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


_NO_OTHER_POD = ("secrets", "replicas", "artifact_bytes", "submission_id")


def _metadata(spec: DeploymentSpec, described: Mapping[str, str]) -> Json:
    return {
        "name": object_name(spec.name),
        "labels": dict(described),
        "annotations": annotated(spec.name, spec.submission_id),
    }


def _pod(spec: DeploymentSpec, options: KubernetesOptions, selector: Mapping[str, str]) -> Json:
    resources = filled(spec.resources, options.engine_defaults)
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
    return {
        **pod_spec(container, object_name(spec.name), resources, options),
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


def _probe(failures: int) -> Json:
    """Whether it generates, the platform tries itself before anybody uses it."""
    return {
        "httpGet": {"path": "/health", "port": PORT},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _start_s(spec: DeploymentSpec) -> float:
    return START_S + spec.artifact_bytes / LOAD_BYTES_PER_S


def _service(metadata: Json, pods: Mapping[str, str]) -> Json:
    """It sends nobody to the pods of an earlier spec: what answers is what was asked for."""
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
    """One at a time: a single replica must not keep a machine from being drained."""
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
