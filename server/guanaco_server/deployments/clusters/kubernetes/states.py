"""What a Deployment and its pods are to the platform: running or exited, and why.

It has exited when no pod runs, and one has ended, or will never begin. Whether what runs is ready to answer,
the platform asks it itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from guanaco_server.deployments.clusters.cluster import ReplicaPhase, ReplicaState
from guanaco_server.deployments.clusters.kubernetes.names import Json
from guanaco_server.deployments.clusters.kubernetes.problems import (
    Problem,
    ending_of,
    is_leaving,
    is_running,
    obstacle_of,
    quota_problem,
)


def pods_of(deployment: Json, pods: Sequence[Json]) -> list[Json]:
    """Those of its present template, the newest first."""
    wanted = deployment["spec"]["template"]["metadata"]["labels"]
    found = [
        pod
        for pod in pods
        if not is_leaving(pod) and wanted.items() <= pod["metadata"].get("labels", {}).items()
    ]
    return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)


def ended_pods(deployment: Json, pods: Sequence[Json]) -> list[Json]:
    return [pod for pod in pods_of(deployment, pods) if ending_of(pod)]


def state_of(
    deployment: Json, pods: Sequence[Json], endpoint: str, now: datetime, pending_s: float
) -> ReplicaState:
    ours = pods_of(deployment, pods)
    if any(is_running(pod) for pod in ours):
        return ReplicaState(ReplicaPhase.RUNNING, endpoint)
    for ending in filter(None, map(ending_of, ours)):
        return ReplicaState(ReplicaPhase.EXITED, endpoint, ending.exit_code, ending.problem)
    problem = _obstacle(deployment, ours, now, pending_s)
    if problem is None:
        return ReplicaState(ReplicaPhase.RUNNING, endpoint)
    phase = ReplicaPhase.EXITED if problem.is_final else ReplicaPhase.RUNNING
    return ReplicaState(phase, endpoint, problem=problem.sentence)


def _obstacle(
    deployment: Json, pods: Sequence[Json], now: datetime, pending_s: float
) -> Problem | None:
    if not pods:
        return quota_problem(deployment, now, pending_s)
    found = [problem for pod in pods if (problem := obstacle_of(pod, now, pending_s))]
    return max(found, key=lambda problem: problem.is_final, default=None)
