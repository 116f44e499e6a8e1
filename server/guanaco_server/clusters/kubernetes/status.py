"""Reads from Deployments, Jobs and pods whether they run or have exited, and why.

A deployment has exited when no pod runs, and one has ended, or will never begin. Its replicas are the pods whose
container has started up, and those that ended:

    no address yet, loading   no replica: the startup probe watches it
    started up                a replica; the platform asks whether it answers while Kubernetes calls it ready
    ended                     an exited replica, which applying again replaces
    its node is lost          the same, although nothing says that it ended
    leaving, of another spec  not counted

A LeaderWorkerSet's replica is a group of pods: its leader has the address, and the group has ended with its first pod.

Problems are sentences for the developer: no machine has room, the image cannot be pulled, it ran out of memory. Each
is of a kind (``Trouble``), which says whether the server or the cluster is its cause.

A pod whose node is lost looks as if it ran: its kubelet is silent, so its containers stay `ready` in its status. The
node's controller alone says that the pod is not (``Ready`` without ``ContainersReady`` is the sign; our pods
have no readiness gates, which would look the same).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState, Trouble
from guanaco_server.clusters.kubernetes.names import (
    GROUP_INDEX,
    LEADER,
    QUEUE,
    QUEUE_GATE,
    SPEC,
    Json,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.pools.claimed import (
    asked_replicas,
    has_served,
    is_claimed,
    is_claimed_for,
    is_ordered,
    takes_orders,
)


def pods_of(deployment: Json, pods: Sequence[Json]) -> list[Json]:
    """Return the pods of the Deployment's present template, the newest first. Older ones are those of an earlier Deployment of this name."""
    found = [pod for pod in pods if not is_leaving(pod) and _is_of(deployment, pod)]
    return sorted(found, key=_made, reverse=True)


def _is_of(deployment: Json, pod: Json) -> bool:
    wanted = _template(deployment)["metadata"]["labels"]
    if is_claimed(pod):  # it may be older than the Deployment
        return is_claimed_for(pod, deployment, wanted.get(SPEC, ""))
    since = str(deployment["metadata"].get("creationTimestamp", ""))
    is_present = wanted.items() <= pod["metadata"].get("labels", {}).items()
    return is_present and str(pod["metadata"]["creationTimestamp"]) >= since


def is_group_set(workload: Json) -> bool:
    return "leaderWorkerTemplate" in workload["spec"]


def is_leader(pod: Json) -> bool:
    """Tell whether it is the first of its group, which answers for all."""
    return bool(LEADER.items() <= pod["metadata"].get("labels", {}).items())


def _template(workload: Json) -> Json:
    spec = workload["spec"]
    template: Json = (
        spec["leaderWorkerTemplate"]["leaderTemplate"]
        if is_group_set(workload)
        else spec["template"]
    )
    return template


def ended_pods(deployment: Json, pods: Sequence[Json]) -> list[Json]:
    return [pod for pod in pods_of(deployment, pods) if termination_of(pod)]


def state_of(
    deployment: Json,
    pods: Sequence[Json],
    options: KubernetesOptions,
    now: datetime,
    pulls: PullFailures,
    events: Iterable[Json] = (),
) -> ReplicaState:
    """Return the deployment's state, with a replica for each pod (oldest first) where pods have addresses of their own."""
    ours = pods_of(deployment, pods)
    if is_group_set(deployment):
        ours = [*ours, *(pod for pod in pods if is_leaving(pod) and is_lost(pod, now))]
    endpoint = options.endpoint_of(deployment["metadata"]["name"])
    obstacle = _obstacle(deployment, ours, now, options.pending_s, pulls)
    if not ours and is_group_set(deployment):
        obstacle = group_creation_problem(deployment, events, now, options.pending_s)
    groups = _groups(deployment, ours)
    state = _state(groups, endpoint, obstacle)
    if not options.has_replica_addresses:
        return state
    replicas = tuple(
        _replica(deployment, pod, options)
        for pod in map(_deciding_pod, groups)
        if _end(pod) or has_started_up(pod)
    )
    ready = next((one for one in replicas if one.is_ready), None)
    is_whole = all(one.phase is ReplicaPhase.RUNNING for one in replicas)
    return replace(
        state,
        endpoint=ready.endpoint if ready else "",
        replicas=replicas,
        is_settled=is_whole and _is_settled(deployment, ours),
        is_swappable=len(ours) == 1 and takes_orders(ours[0], options.pools),
        is_ready=ready is not None,
    )


def _is_settled(deployment: Json, ours: Sequence[Json]) -> bool:
    """Tell whether its own pods and the claimed ones are as many as were asked for, and each of these has its order."""
    claimed = [pod for pod in ours if is_claimed(pod) and not termination_of(pod)]
    asked, own = asked_replicas(deployment), deployment["spec"].get("replicas", 1)
    return asked == own + len(claimed) and asked > 0 and all(map(is_ordered, claimed))


def _groups(workload: Json, ours: Sequence[Json]) -> list[list[Json]]:
    """Return the pods of each replica, the oldest replica first."""
    if not is_group_set(workload):
        return [[pod] for pod in reversed(ours)]
    groups: dict[str, list[Json]] = {}
    for pod in reversed(ours):
        index = pod["metadata"].get("labels", {}).get(GROUP_INDEX, "")
        groups.setdefault(index, []).append(pod)
    return list(groups.values())


def _deciding_pod(group: Sequence[Json]) -> Json:
    """Return the pod that tells how its group is: one that ended, else the leader."""
    return max(group, key=lambda pod: (_end(pod) is not None, is_leader(pod)))


def _end(pod: Json) -> PodTermination | None:
    """Return how the pod ended. Pods that are leaving are looked at only if they are lost."""
    return _lost(pod) if is_leaving(pod) else termination_of(pod)


def _state(
    groups: Sequence[Sequence[Json]], endpoint: str, obstacle: Problem | None
) -> ReplicaState:
    endings = [ending for group in groups if (ending := _end(_deciding_pod(group)))]
    if any(all(is_running(pod) and not _end(pod) for pod in group) for group in groups):
        beside = [ending.words for ending in endings] + ([obstacle.sentence] if obstacle else [])
        return ReplicaState(ReplicaPhase.RUNNING, endpoint, problem=next(iter(beside), None))
    if endings:
        worst = max(endings, key=lambda ending: ending.trouble is Trouble.CRASHED)
        exit_code, problem, trouble = worst.exit_code, worst.problem, worst.trouble
        return ReplicaState(ReplicaPhase.EXITED, endpoint, exit_code, problem, trouble)
    if obstacle is None:
        return ReplicaState(ReplicaPhase.RUNNING, endpoint)
    phase = ReplicaPhase.EXITED if obstacle.is_final else ReplicaPhase.RUNNING
    return ReplicaState(phase, endpoint, problem=obstacle.sentence, trouble=obstacle.trouble)


def _made(pod: Json) -> tuple[str, str]:
    return str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["name"])


def _replica(deployment: Json, pod: Json, options: KubernetesOptions) -> ReplicaState:
    endpoint = options.endpoint_of(deployment["metadata"]["name"], pod)
    if ending := _end(pod):
        code, trouble = ending.exit_code, ending.trouble
        return ReplicaState(ReplicaPhase.EXITED, endpoint, code, trouble=trouble, is_ready=False)
    return ReplicaState(
        ReplicaPhase.RUNNING,
        endpoint,
        is_ready=bool(endpoint) and is_ready(pod),
        machine=pod["spec"].get("nodeName", ""),
    )


def _obstacle(
    deployment: Json, pods: Sequence[Json], now: datetime, pending_s: float, pulls: PullFailures
) -> Problem | None:
    if not pods:
        return quota_problem(deployment, now, pending_s)
    found = [problem for pod in pods if (problem := obstacle_of(pod, now, pending_s, pulls))]
    return max(found, key=lambda problem: problem.is_final, default=None)


IMAGE_S = 60.0  # a registry may have a bad moment; a name with a typing error stays wrong
PULL_REASONS = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"}
START_REASONS = {"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}
LONGEST = 300


@dataclass(frozen=True)
class Problem:
    """``is_final``: a submission that is being deployed does not wait for it any longer."""

    sentence: str
    is_final: bool = False
    trouble: Trouble = Trouble.UNPLACED


@dataclass(frozen=True)
class PodTermination:
    """The end of a pod's container, and what the platform knows about it beside its own output."""

    exit_code: int
    problem: str | None = None
    trouble: Trouble = Trouble.CRASHED

    @property
    def words(self) -> str:
        return self.problem or f"A replica exited with status {self.exit_code}."


def termination_of(pod: Json) -> PodTermination | None:
    """Return how the pod's container ended; None while it runs, or has not run yet."""
    status = pod.get("status", {})
    ended = _ended_container(status)
    if is_on_lost_node(pod):
        return _lost(pod)
    if status.get("reason") == "Evicted":
        problem = f"Its machine evicted it: {_words(status.get('message'))}."
        return PodTermination(_exit_code(ended, 137), problem, _trouble_of_eviction(status))
    if ended is None:
        if status.get("phase") != "Failed":
            return None
        problem = f"It was ended by the cluster: {_reason_of(status)}."
        return PodTermination(137, problem, Trouble.NODE_LOST)
    if ended.get("reason") == "OOMKilled":
        return PodTermination(_exit_code(ended, 137), f"It ran out of memory{_memory_limit(pod)}.")
    if disruption := _condition(status, "DisruptionTarget", "True"):
        problem = f"The cluster took its machine away: {_words(disruption.get('message'))}."
        return PodTermination(_exit_code(ended, 137), problem, Trouble.NODE_LOST)
    if ended.get("reason") in START_REASONS:
        problem = f"Its container cannot be started: {_words(ended.get('message'))}."
        return PodTermination(_exit_code(ended, 128), problem)
    return PodTermination(_exit_code(ended, 1))


def _lost(pod: Json) -> PodTermination:
    return PodTermination(137, NODE_LOST.format(_node(pod)), Trouble.NODE_LOST)


class PullFailures:
    """Return since when each pod's image cannot be pulled. A kubelet does not say, and the pod may have waited long for its machine, or pulled long."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}

    def age_of(self, pod: Json, now: datetime) -> float:
        """Return the seconds since the first failure that was seen of this pod."""
        since = self._since.setdefault(str(pod["metadata"]["uid"]), now)
        return (now - since).total_seconds()

    def forget_all_but(self, uids: set[str]) -> None:
        for uid in self._since.keys() - uids:
            del self._since[uid]


def obstacle_of(pod: Json, now: datetime, pending_s: float, pulls: PullFailures) -> Problem | None:
    """Return why a pod does not start."""
    status, age_s = pod.get("status", {}), age_of(pod, now)
    unscheduled = _condition(status, "PodScheduled", "False")
    if unscheduled and unscheduled.get("reason") == "Unschedulable":
        return Problem(_no_room(pod, _words(unscheduled.get("message"))), age_s > pending_s)
    if unscheduled and unscheduled.get("reason") == "SchedulingGated":
        if QUEUE_GATE in _gates(pod):
            return Problem(_queued(pod), trouble=Trouble.QUEUED)  # whatever time that takes
        problem = f"It waits until somebody opens its scheduling gates: {', '.join(_gates(pod))}."
        return Problem(problem, age_s > pending_s)
    # The following states began when the pod had its machine.
    age_s = _seconds_since(_scheduled_at(pod), now)
    waiting = next((state for state in _states(status, "state", "waiting")), None)
    if waiting is None:
        return None
    reason, message = str(waiting.get("reason", "")), _words(waiting.get("message"))
    if reason == "InvalidImageName":
        problem = f"{_image(pod)} is not the name of an image."
        return Problem(problem, is_final=True, trouble=Trouble.IMAGE_MISSING)
    if reason in PULL_REASONS:
        problem = f"The image {_image(pod)} cannot be pulled: {message}."
        return Problem(problem, pulls.age_of(pod, now) > IMAGE_S, Trouble.IMAGE_MISSING)
    if reason in START_REASONS:
        problem = f"Its container cannot be started: {message}."
        return Problem(problem, age_s > IMAGE_S, Trouble.CRASHED)
    if reason == "CreateContainerConfigError":
        problem = f"Its container waits for something: {message}."
        return Problem(problem, age_s > pending_s, Trouble.OBJECT_MISSING)
    return None


def quota_problem(deployment: Json, now: datetime, pending_s: float) -> Problem | None:
    """Return what keeps a Deployment from making pods. It may pass, as a lack of machines may."""
    failure = _condition(deployment.get("status", {}), "ReplicaFailure", "True")
    if failure is None:
        return None
    since = failure.get("lastTransitionTime", deployment["metadata"]["creationTimestamp"])
    return Problem(_refused(failure.get("message")), _seconds_since(since, now) > pending_s)


def creation_problem(
    job: Json, events: Iterable[Json], now: datetime, pending_s: float
) -> Problem | None:
    """Return what keeps a Job from making its pod. Only its events tell."""
    uid = job["metadata"]["uid"]
    for event in events:
        if event.get("reason") == "FailedCreate" and event["involvedObject"].get("uid") == uid:
            return Problem(_refused(event.get("message")), age_of(job, now) > pending_s)
    return None


def group_creation_problem(
    group_set: Json, events: Iterable[Json], now: datetime, pending_s: float
) -> Problem | None:
    """Return what keeps a LeaderWorkerSet from getting pods. Only the events of its StatefulSet tell, which has its name."""
    metadata = group_set["metadata"]
    wanted = {"kind": "StatefulSet", "name": metadata["name"]}
    for event in events:
        is_new = str(event.get("lastTimestamp") or "") >= str(metadata["creationTimestamp"])
        is_ours = wanted.items() <= event["involvedObject"].items()
        if event.get("reason") == "FailedCreate" and is_ours and is_new:
            return Problem(_refused(event.get("message")), age_of(group_set, now) > pending_s)
    return None


def age_of(found: Json, now: datetime) -> float:
    """Return the seconds since the object was made."""
    return _seconds_since(found["metadata"]["creationTimestamp"], now)


def has_started(pod: Json) -> bool:
    """Tell whether the pod's container runs, or has run."""
    status = pod.get("status", {})
    return is_running(pod) or _ended_container(status) is not None


def is_running(pod: Json) -> bool:
    return next(iter(_states(pod.get("status", {}), "state", "running")), None) is not None


def has_started_up(pod: Json) -> bool:
    """Tell whether the pod's container runs and its startup probe has passed, or a claimed one is ready again; from then on it is expected to answer."""
    if is_claimed(pod):
        return is_running(pod) and has_served(pod)
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    return is_running(pod) and any(container.get("started") for container in containers)


def is_ready(pod: Json) -> bool:
    return _condition(pod.get("status", {}), "Ready", "True") is not None


def is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


NODE_LOST = "Its machine {} is lost: the cluster hears nothing of it."
LOST_SLACK_S = 10.0  # a kubelet that lives confirms a few seconds after the grace period


def is_on_lost_node(pod: Json) -> bool:
    """Tell whether its machine is silent: the pod is ready for its kubelet, and not for the cluster."""
    status = pod.get("status", {})
    return (
        is_running(pod)
        and _condition(status, "ContainersReady", "True") is not None
        and _condition(status, "Ready", "False") is not None
    )


def is_lost(pod: Json, now: datetime) -> bool:
    """Tell whether nobody can say how the pod ends: its machine is silent, or has not confirmed in time that it ended."""
    ends_at = pod["metadata"].get("deletionTimestamp")
    return is_on_lost_node(pod) or bool(ends_at and _seconds_since(ends_at, now) > LOST_SLACK_S)


def _seconds_since(text: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(text.replace("Z", "+00:00"))).total_seconds()


def _scheduled_at(pod: Json) -> str:
    """Return when the pod was given its machine; it cannot have pulled anything before."""
    scheduled = _condition(pod.get("status", {}), "PodScheduled", "True") or {}
    return str(scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _trouble_of_eviction(status: Json) -> Trouble:
    """A pod that used more than it may is evicted by its own doing."""
    is_own = "exceeds" in str(status.get("message"))
    return Trouble.CRASHED if is_own else Trouble.NODE_LOST


def _no_room(pod: Json, message: str) -> str:
    asked = _limits(pod)
    for resource, kind in (("nvidia.com/gpu", "NVIDIA GPU"), ("amd.com/gpu", "AMD GPU")):
        if resource in asked and (
            f"Insufficient {resource}" in message or "node affinity" in message
        ):
            return f"No machine has {asked[resource]} {kind} of the kind it needs free: {message}."
    return f"No machine can take it: {message}."


def _gates(pod: Json) -> list[str]:
    return [str(gate["name"]) for gate in pod["spec"].get("schedulingGates", [])]


def _queued(pod: Json) -> str:
    queue = pod["metadata"].get("labels", {}).get(QUEUE)
    return f"It waits for a place in {f'the queue {queue}' if queue else 'its queue'} of Kueue."


def _refused(message: object) -> str:
    reason = _words(message)
    if "exceeded quota" in reason:
        return f"The cluster's quota does not allow it: {reason[reason.index('exceeded quota') :]}."
    return f"The cluster does not allow it: {reason}."


def _reason_of(status: Json) -> str:
    return _words(status.get("message") or status.get("reason") or "it gave no reason")


def _states(status: Json, which: str, state: str) -> Iterable[Json]:
    for container in status.get("containerStatuses", []):
        if (found := container.get(which, {}).get(state)) is not None:
            yield found


def _ended_container(status: Json) -> Json | None:
    """Ended now, or waiting to be started again after it ended."""
    ended = next(iter(_states(status, "state", "terminated")), None)
    if ended is None and next(iter(_states(status, "state", "waiting")), None) is not None:
        ended = next(iter(_states(status, "lastState", "terminated")), None)
    return ended


def _condition(status: Json, kind: str, value: str) -> Json | None:
    for condition in status.get("conditions", []):
        if condition.get("type") == kind and condition.get("status") == value:
            found: Json = condition
            return found
    return None


def _limits(pod: Json) -> Mapping[str, str]:
    limits: Mapping[str, str] = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return limits


def _memory_limit(pod: Json) -> str:
    limit = _limits(pod).get("memory")
    if limit is None:
        return ""
    return f": {int(limit):,} bytes are its limit" if limit.isdigit() else f": {limit} is its limit"


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0].get("image"))


def _exit_code(ended: Json | None, otherwise: int) -> int:
    return int((ended or {}).get("exitCode", otherwise))


def _words(text: object) -> str:
    """Return the text as one short line."""
    return re.sub(r"\s+", " ", str(text or "no reason is given"))[:LONGEST].strip().rstrip(".")
