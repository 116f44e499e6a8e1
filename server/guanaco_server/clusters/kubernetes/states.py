"""What a Deployment and its pods are to the platform: running or exited, and why.

It has exited when no pod runs, and one has ended, or will never begin. Its replicas are the pods whose container
has started up, and those that ended:

    no address yet, loading   no replica: its startup probe looks after it
    started up                a replica; asked by the platform whether it answers while Kubernetes calls it ready
    ended                     an exited replica, which applying again replaces
    leaving, of another spec  nobody's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState
from guanaco_server.clusters.kubernetes.names import Json
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.problems import (
    Problem,
    ending_of,
    has_started_up,
    is_leaving,
    is_ready,
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
    return sorted(found, key=_made, reverse=True)


def ended_pods(deployment: Json, pods: Sequence[Json]) -> list[Json]:
    return [pod for pod in pods_of(deployment, pods) if ending_of(pod)]


def state_of(
    deployment: Json, pods: Sequence[Json], options: KubernetesOptions, now: datetime
) -> ReplicaState:
    """With a replica for each pod, the oldest first, where pods have addresses of their own."""
    ours = pods_of(deployment, pods)
    endpoint = options.endpoint_of(deployment["metadata"]["name"])
    state = _state(deployment, ours, endpoint, now, options.pending_s)
    if not options.has_replica_addresses:
        return state
    replicas = tuple(
        _replica(deployment, pod, options)
        for pod in reversed(ours)
        if ending_of(pod) or has_started_up(pod)
    )
    ready = next((one for one in replicas if one.is_ready), None)
    is_whole = all(one.phase is ReplicaPhase.RUNNING for one in replicas)
    return replace(
        state,
        endpoint=ready.endpoint if ready else "",
        replicas=replicas,
        is_settled=is_whole,
        is_ready=ready is not None,
    )


def _state(
    deployment: Json, ours: Sequence[Json], endpoint: str, now: datetime, pending_s: float
) -> ReplicaState:
    endings = list(filter(None, map(ending_of, ours)))
    obstacle = _obstacle(deployment, ours, now, pending_s)
    if any(is_running(pod) for pod in ours):
        beside = [ending.words for ending in endings] + ([obstacle.sentence] if obstacle else [])
        return ReplicaState(ReplicaPhase.RUNNING, endpoint, problem=next(iter(beside), None))
    if endings:
        return ReplicaState(ReplicaPhase.EXITED, endpoint, endings[0].exit_code, endings[0].problem)
    if obstacle is None:
        return ReplicaState(ReplicaPhase.RUNNING, endpoint)
    phase = ReplicaPhase.EXITED if obstacle.is_final else ReplicaPhase.RUNNING
    return ReplicaState(phase, endpoint, problem=obstacle.sentence)


def _made(pod: Json) -> tuple[str, str]:
    return str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["name"])


def _replica(deployment: Json, pod: Json, options: KubernetesOptions) -> ReplicaState:
    endpoint = options.endpoint_of(deployment["metadata"]["name"], pod)
    if ending := ending_of(pod):
        return ReplicaState(ReplicaPhase.EXITED, endpoint, ending.exit_code, is_ready=False)
    return ReplicaState(ReplicaPhase.RUNNING, endpoint, is_ready=bool(endpoint) and is_ready(pod))


def _obstacle(
    deployment: Json, pods: Sequence[Json], now: datetime, pending_s: float
) -> Problem | None:
    if not pods:
        return quota_problem(deployment, now, pending_s)
    found = [problem for pod in pods if (problem := obstacle_of(pod, now, pending_s))]
    return max(found, key=lambda problem: problem.is_final, default=None)
