"""A model over several machines: a LeaderWorkerSet, of which one group of pods is one replica.

    group   one pod a machine, each with its share of the GPUs; the first leads it, and alone answers requests

All pods run the same command, with their number in the group and the leader's address. When one pod restarts or goes,
the controller recreates its whole group, for vLLM's ranks cannot be replaced one by one. Pods keep their names
(StatefulSets make them), so one on a lost machine holds its name until it is deleted by force (``kubernetes/cluster.py``).

The API is leaderworkerset.x-k8s.io/v1, as of its version 0.7: https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
"""

from __future__ import annotations

from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.api.client import GROUP_SET
from guanaco_server.clusters.kubernetes.manifests.objects import (
    deployment_object,
    queue_label,
    server_labels,
    server_metadata,
    server_pod,
)
from guanaco_server.clusters.kubernetes.names import Json, annotated, group_set_name
from guanaco_server.clusters.kubernetes.options import KubernetesOptions


def workload_object(
    spec: DeploymentSpec, options: KubernetesOptions, *, replaces_others: bool = False
) -> Json:
    """Make what runs the model server: a Deployment, or for several machines a LeaderWorkerSet."""
    if spec.resources.nodes == 1:
        return deployment_object(spec, options, replaces_others=replaces_others)
    return group_set_object(spec, options, replaces_others=replaces_others)


def group_set_object(
    spec: DeploymentSpec, options: KubernetesOptions, *, replaces_others: bool = False
) -> Json:
    """Make the LeaderWorkerSet. A group is stopped before its successor starts, because whole machines are seldom free."""
    described = server_labels(spec, options)
    metadata = server_metadata(spec, described | queue_label(spec, options))
    unavailable = "100%" if replaces_others else 1
    return {
        "apiVersion": GROUP_SET.api_version,
        "kind": GROUP_SET.name,
        "metadata": {**metadata, "name": group_set_name(spec.name)},
        "spec": {
            "replicas": spec.replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": unavailable},
            },
            "leaderWorkerTemplate": {
                "size": spec.resources.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(spec, options, described, is_answering=True),
                "workerTemplate": _template(spec, options, described, is_answering=False),
            },
        },
    }


def _template(
    spec: DeploymentSpec,
    options: KubernetesOptions,
    described: dict[str, str],
    *,
    is_answering: bool,
) -> Json:
    return {
        "metadata": {
            "labels": dict(described),
            "annotations": annotated(spec.name, spec.submission_id),
        },
        "spec": server_pod(spec, options, is_answering=is_answering),
    }
