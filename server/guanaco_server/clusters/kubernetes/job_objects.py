"""The objects of one job: a Job, and what it owns."""

from __future__ import annotations

import math

from guanaco_server.clusters.cluster import JobSpec
from guanaco_server.clusters.kubernetes.names import (
    MANAGED_BY,
    MANAGER,
    NAME,
    WORKER,
    Json,
    annotated,
    label_value,
    labels,
    object_name,
    owned_by,
)
from guanaco_server.clusters.kubernetes.objects import network_policy, secret_object
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.pods import (
    CONTAINER,
    command_in_pod,
    filled,
    pod_spec,
)

JOB_COMPONENT = "job"
STOP_S = 10
KEPT_S = 600  # what a platform that was killed left behind goes by itself


def job_object(spec: JobSpec, options: KubernetesOptions) -> Json:
    """A pod that ends by itself has failed for good, for the platform tries again; one that its machine loses is made anew."""
    resources = filled(spec.resources, options.job_defaults)
    container = {
        "image": resources.image or options.serializer_image,
        "command": command_in_pod(spec.command),
        "environment": spec.environment,
    }
    job: Json = {
        "backoffLimit": 1,
        "ttlSecondsAfterFinished": KEPT_S,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "NotIn",
                        "values": [0],
                    },
                },
            ]
        },
        "template": {
            "metadata": {
                "labels": _labels(spec, options),
                "annotations": annotated(spec.name, spec.submission_id),
            },
            "spec": {
                **pod_spec(container, object_name(spec.name), resources, options),
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": STOP_S,
            },
        },
    }
    if spec.timeout_s is not None:
        job["activeDeadlineSeconds"] = max(1, math.ceil(spec.timeout_s))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(spec, options),
        "spec": job,
    }


def owned_by_job(spec: JobSpec, options: KubernetesOptions, owner: Json) -> list[Json]:
    """In the order to apply them: the Secret last, for the pod waits for it."""
    metadata = {**_metadata(spec, options), "ownerReferences": owned_by(owner)}
    pods = {MANAGED_BY: MANAGER, NAME: label_value(spec.name)}
    return [
        network_policy(metadata, pods, [], options.serializer_egress),
        secret_object(metadata, spec.secrets),
    ]


def _metadata(spec: JobSpec, options: KubernetesOptions) -> Json:
    return {
        "name": object_name(spec.name),
        "labels": _labels(spec, options),
        "annotations": annotated(spec.name, spec.submission_id),
    }


def _labels(spec: JobSpec, options: KubernetesOptions) -> dict[str, str]:
    described = labels(spec.name, spec.submission_id, JOB_COMPONENT)
    return {**described, WORKER: label_value(options.worker)}
