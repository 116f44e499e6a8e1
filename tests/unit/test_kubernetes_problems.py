"""Tests how one sentence for the developer is made of what the cluster says about a pod."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from guanaco_server.clusters.cluster import ReplicaPhase, Trouble
from guanaco_server.clusters.kubernetes.names import label_value, object_name
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.status import (
    PullFailures,
    creation_problem,
    is_lost,
    obstacle_of,
    quota_problem,
    state_of,
    termination_of,
)

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
PENDING_S = 300.0
OPTIONS = KubernetesOptions("models", "engine:1", "serializer:1", "worker-1", pending_s=PENDING_S)
Json = dict[str, Any]


def pod(status: Json, age_s: float = 10, limits: Json | None = None, **labels: str) -> Json:
    made = (NOW - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = {
        "name": "main",
        "image": "registry.test/x:1",
        "resources": {"limits": limits or {}},
    }
    return {
        "metadata": {"name": "m-1", "uid": "u-1", "creationTimestamp": made, "labels": labels},
        "spec": {"containers": [container]},
        "status": status,
    }


def container(state: Json, last: Json | None = None) -> Json:
    return {"name": "main", "state": state, "lastState": last or {}, "restartCount": 0}


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


def status(state: Json, last: Json | None = None, **fields: object) -> Json:
    return {"phase": "Running", "containerStatuses": [container(state, last)], **fields}


DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "default-scheduler: preempting to accommodate a higher priority pod",
}


@pytest.mark.parametrize(
    ("found", "code", "sentence"),
    [
        (status(ended(3)), 3, None),
        (status(ended(0, "Completed")), 0, None),
        (status(waiting("CrashLoopBackOff"), ended(7)), 7, None),
        (status(ended(137, "OOMKilled")), 137, "It ran out of memory: 1,024 bytes are its limit."),
        (status(waiting("CrashLoopBackOff"), ended(137, "OOMKilled")), 137,
         "It ran out of memory: 1,024 bytes are its limit."),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on\n resource: memory."}, 137,
         "Its machine evicted it: low on resource: memory."),
        (status(ended(143), phase="Failed", conditions=[DISRUPTED]), 143,
         "The cluster took its machine away: default-scheduler: preempting to accommodate a higher priority pod."),
        (status(ended(128, "StartError", 'exec: "serve": executable file not found in $PATH')), 128,
         'Its container cannot be started: exec: "serve": executable file not found in $PATH.'),
        ({"phase": "Failed", "reason": "NodeLost", "message": ""}, 137,
         "It was ended by the cluster: NodeLost."),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}, 137,
         "It was ended by the cluster: Allocate failed."),
    ],
)  # fmt: skip
def test_how_a_pod_ended(found: Json, code: int, sentence: str | None) -> None:
    ending = termination_of(pod(found, limits={"memory": "1024"}))
    assert ending is not None
    assert (ending.exit_code, ending.problem) == (code, sentence)
    assert sentence is None or is_one_sentence(sentence)


@pytest.mark.parametrize(
    "found", [{}, {"phase": "Pending"}, status({"running": {}}), status(waiting("ContainerCreating")),
              status({"running": {}}, ended(1))],
)  # fmt: skip
def test_what_has_not_ended(found: Json) -> None:
    assert termination_of(pod(found)) is None


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        (status(ended(3)), Trouble.CRASHED),
        (status(ended(137, "OOMKilled")), Trouble.CRASHED),
        (status(ended(143), phase="Failed", conditions=[DISRUPTED]), Trouble.NODE_LOST),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
         Trouble.NODE_LOST),
        ({"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "8Gi".'},
         Trouble.CRASHED),
        ({"phase": "Failed", "reason": "NodeLost"}, Trouble.NODE_LOST),
        (status({"running": {}}, conditions=[{"type": "Ready", "status": "False"},
                                             {"type": "ContainersReady", "status": "True"}]), Trouble.NODE_LOST),
    ],
)  # fmt: skip
def test_whose_doing_an_end_was(found: Json, trouble: Trouble) -> None:
    ending = termination_of(pod(found))
    assert ending is not None
    assert ending.trouble is trouble


def test_pod_whose_end_is_not_confirmed_is_lost() -> None:
    leaving = pod(status({"running": {}}))
    for ends_at, lost in (("2026-11-21T12:00:05Z", False), ("2026-11-21T11:59:40Z", True)):
        leaving["metadata"]["deletionTimestamp"] = ends_at
        assert is_lost(leaving, NOW) is lost


def unscheduled(message: str) -> Json:
    return {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
            }
        ],
    }


@pytest.mark.parametrize(
    ("found", "limits", "sentence", "patience_s"),
    [
        (unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), {"nvidia.com/gpu": "2"},
         "No machine has 2 NVIDIA GPU of the kind it needs free: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
         PENDING_S),
        (unscheduled("3 node(s) didn't match Pod's node affinity/selector"), {"amd.com/gpu": "1"},
         "No machine has 1 AMD GPU of the kind it needs free: 3 node(s) didn't match Pod's node affinity/selector.",
         PENDING_S),
        (unscheduled("0/3 nodes are available: 3 Insufficient memory."), {},
         "No machine can take it: 0/3 nodes are available: 3 Insufficient memory.", PENDING_S),
        (status(waiting("ErrImagePull", "not found")), {},
         "The image registry.test/x:1 cannot be pulled: not found.", 60),
        (status(waiting("ImagePullBackOff", "Back-off pulling image")), {},
         "The image registry.test/x:1 cannot be pulled: Back-off pulling image.", 60),
        (status(waiting("InvalidImageName", "bad")), {},
         "registry.test/x:1 is not the name of an image.", 0),
        (status(waiting("RunContainerError", "no such device")), {},
         "Its container cannot be started: no such device.", 60),
        (status(waiting("CreateContainerConfigError", 'secret "m" not found')), {},
         'Its container waits for something: secret "m" not found.', PENDING_S),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_running(
    found: Json, limits: Json, sentence: str, patience_s: float
) -> None:
    pulls = PullFailures()
    for age_s, is_final in ((1, patience_s == 0), (patience_s + 5, True)):
        now = NOW + timedelta(seconds=age_s - 1)
        problem = obstacle_of(pod(found, 1, limits), now, PENDING_S, pulls)
        assert problem is not None
        assert (problem.sentence, problem.is_final) == (sentence, is_final)
    assert is_one_sentence(sentence)


@pytest.mark.parametrize(
    "found",
    [{}, {"phase": "Pending"}, status(waiting("ContainerCreating")), status({"running": {}})],
)
def test_nothing_keeps_a_pod_that_only_begins(found: Json) -> None:
    assert obstacle_of(pod(found, 9_999), NOW, PENDING_S, PullFailures()) is None


QUOTA = 'pods "s-1" is forbidden: exceeded quota: models, requested: pods=1'


def refused(message: str) -> tuple[Json, Json]:
    """A Deployment, and an event about it."""
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    owner = {**pod({"conditions": [failure]}), "kind": "Deployment"}
    return owner, {"reason": "FailedCreate", "message": message, "involvedObject": {"uid": "u-1"}}


def test_quota_is_read_from_deployment_conditions_and_job_events() -> None:
    owner, event = refused(QUOTA)
    for pending_s, is_final in ((60, False), (5, True)):
        problem = quota_problem(owner, NOW, pending_s)
        assert problem is not None
        assert problem == creation_problem(owner, [event], NOW, pending_s)
        assert problem.is_final is is_final
        assert problem.sentence == (
            "The cluster's quota does not allow it: exceeded quota: models, requested: pods=1."
        )
    other = {**event, "involvedObject": {"uid": "u-2"}}
    assert creation_problem(owner, [other], NOW, PENDING_S) is None
    assert quota_problem(pod({}), NOW, PENDING_S) is None


def test_a_pod_security_refusal_is_told_too() -> None:
    owner, _ = refused('violates PodSecurity "restricted:latest"')
    problem = quota_problem(owner, NOW, PENDING_S)
    assert problem is not None
    assert problem.sentence.startswith("The cluster does not allow it: violates PodSecurity")


@pytest.mark.parametrize(
    ("pods", "phase", "exit_code"),
    [
        ([], ReplicaPhase.RUNNING, None),
        ([pod({"phase": "Pending"}, name="a")], ReplicaPhase.RUNNING, None),
        ([pod(status({"running": {}}), name="a")], ReplicaPhase.RUNNING, None),
        ([pod(status(ended(7)), name="a")], ReplicaPhase.EXITED, 7),
        ([pod(status(ended(7)), name="a"), pod(status({"running": {}}), name="a")], ReplicaPhase.RUNNING, None),
        ([pod(status(ended(7)), name="other")], ReplicaPhase.RUNNING, None),
        ([pod(status(waiting("ErrImagePull")), 99, name="a")], ReplicaPhase.RUNNING, None),
        ([pod(status(waiting("InvalidImageName")), name="a")], ReplicaPhase.EXITED, None),
    ],
)  # fmt: skip
def test_a_deployments_state_is_that_of_its_present_pods(
    pods: list[Json], phase: ReplicaPhase, exit_code: int | None
) -> None:
    deployment = {
        "metadata": {"name": "m"},
        "spec": {"template": {"metadata": {"labels": {"name": "a"}}}},
    }
    state = state_of(deployment, pods, OPTIONS, NOW, PullFailures())
    assert (state.phase, state.exit_code) == (phase, exit_code)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [("10.1.2.3", "http://10.1.2.3:8000"), ("fd00::7", "http://[fd00::7]:8000"), (None, "")],
)
def test_a_pod_is_reached_at_its_own_address(address: str | None, endpoint: str) -> None:
    found = {"metadata": {"name": "m-1"}, "status": {"podIP": address} if address else {}}
    assert OPTIONS.endpoint_of("m", found) == endpoint
    named = replace(OPTIONS, endpoint="http://proxy.test/{namespace}/{pod}/{address}")
    if address:
        assert named.endpoint_of("m", found).startswith("http://proxy.test/models/m-1/")


@pytest.mark.parametrize("name", ["m-tiny", "a", "x" * 63])
def test_a_name_that_will_do_is_kept(name: str) -> None:
    assert object_name(name) == name == label_value(name)


@pytest.mark.parametrize("name", ["x" * 64, "Upper", "9-lives", "a_b", "", "-", "ü/ü", "a.b", "x-"])
def test_any_other_becomes_one_that_will_do_and_differs(name: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", object_name(name))
    assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", label_value(name))
    assert object_name(name) != object_name(name + "!")


def is_one_sentence(text: str) -> bool:
    return text.endswith(".") and not text.endswith("..") and "\n" not in text


GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


@pytest.mark.parametrize(
    ("gate", "sentence", "trouble"),
    [
        (
            "kueue.x-k8s.io/admission",
            "It waits for a place in the queue models of Kueue.",
            Trouble.QUEUED,
        ),
        (
            "acme.test/audit",
            "It waits until somebody opens its scheduling gates: acme.test/audit.",
            Trouble.UNPLACED,
        ),
    ],
)
def test_unadmitted_pod_waits_without_limit_for_its_queue(
    gate: str, sentence: str, trouble: Trouble
) -> None:
    found = pod(
        {"phase": "Pending", "conditions": [GATED]}, **{"kueue.x-k8s.io/queue-name": "models"}
    )
    found["spec"]["schedulingGates"] = [{"name": gate}]
    problem = obstacle_of(found, NOW, PENDING_S, PullFailures())
    assert problem is not None
    assert (problem.sentence, problem.is_final, problem.trouble) == (sentence, False, trouble)
    much_later = NOW + timedelta(days=7)
    problem = obstacle_of(found, much_later, PENDING_S, PullFailures())
    assert problem is not None
    assert problem.is_final is (trouble is not Trouble.QUEUED)
