"""Tests what is sent to a cluster: as it was agreed (golden files), and valid, safe and coherent."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from guanaco.errors import ClusterRefused, InvalidSettings
from guanaco_server.clusters.cluster import DeploymentSpec, JobSpec, Resources
from guanaco_server.clusters.kubernetes.manifests.groups import workload_object
from guanaco_server.clusters.kubernetes.manifests.objects import (
    deployment_object,
    job_object,
    owned_by_job,
    owned_objects,
    spec_hash,
)
from guanaco_server.clusters.kubernetes.manifests.pods import near_of
from guanaco_server.clusters.kubernetes.options import Egress, KubernetesOptions, options_of
from guanaco_server.settings import Settings
from tests.fixtures.manifest_checks import VERSIONS, problems_in

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = KubernetesOptions(
    namespace="models",
    engine_image="registry.test/engine:1",
    serializer_image="registry.test/serializer:1",
    worker="worker-1",
    priority_class="models",
    gpu_nodes={"H100": {"gpu.test/kind": "h100"}, "MI300X": {"gpu.test/kind": "mi300x"}},
    engine_egress=(Egress("10.1.0.0/16", 9000),),
    serializer_egress=(Egress("10.1.0.0/16", 9000), Egress("0.0.0.0/0", 443)),
    platform_namespace="guanaco",
    job_defaults=Resources(memory_bytes=2**30),
)
ONE_ADDRESS = replace(OPTIONS, endpoint="http://{name}.{namespace}.svc:8000")
SERVER = DeploymentSpec(
    "m-acme-tiny-v1-46905bf6",
    ("serve", "--artifact", "s3://models/ab", "--host", "{host}", "--port", "{port}"),
    {"GUANACO_RUN": "1"},
    secrets={"GUANACO_URLS": "{}"},
    resources=Resources(64 * 2**30, 50 * 2**30, "H100", 2),
    replicas=2,
    artifact_bytes=16_000_000_000,
    submission_id="Acme/tiny_v1",
)
JOB = JobSpec(
    "s-ab12",
    ("python", "-m", "guanaco_server.serializer.job"),
    secrets={"HF_TOKEN": "hf_x"},
    timeout_s=3600,
    submission_id="Acme/tiny_v1",
)


def server_objects(
    spec: DeploymentSpec = SERVER, options: KubernetesOptions = OPTIONS
) -> list[dict[str, Any]]:
    workload = workload_object(spec, options)
    return [workload, *owned_objects(spec, options, with_uid(workload))]


def group_objects(options: KubernetesOptions = OPTIONS) -> list[dict[str, Any]]:
    """A model over two machines of four GPUs."""
    command = (
        *SERVER.command,
        "--nnodes",
        "2",
        "--node-rank",
        "{rank}",
        "--master-addr",
        "{leader}",
    )
    asked = Resources(64 * 2**30, 50 * 2**30, "H100", 4, nodes=2)
    return server_objects(replace(SERVER, command=command, resources=asked), options)


def job_objects(spec: JobSpec = JOB, options: KubernetesOptions = OPTIONS) -> list[dict[str, Any]]:
    job = job_object(spec, options)
    return [job, *owned_by_job(spec, options, with_uid(job))]


def with_uid(owner: dict[str, Any]) -> dict[str, Any]:
    return {**owner, "metadata": {**owner["metadata"], "uid": "0" * 8}}


@pytest.mark.parametrize(
    ("name", "make"), [("server", server_objects), ("group", group_objects), ("job", job_objects)]
)
def test_the_manifests_are_as_agreed(name: str, make: Callable[[], list[dict[str, Any]]]) -> None:
    """GUANACO_GOLDEN=write writes them again; read the difference before you commit it."""
    path = GOLDEN / f"kubernetes-{name}.yaml"
    text = yaml.dump_all(copy.deepcopy(make()), Dumper=Plain, sort_keys=False)
    if os.environ.get("GUANACO_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


class Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.mark.parametrize(
    "objects",
    [
        server_objects(),
        server_objects(replace(SERVER, resources=Resources(gpu_type="MI300X", gpu_count=8))),
        server_objects(replace(SERVER, resources=Resources(), name="M_odd/" + "x" * 90)),
        server_objects(replace(SERVER, submission_id="ü" * 100, environment={})),
        server_objects(options=replace(OPTIONS, platform_namespace=None, priority_class=None)),
        server_objects(options=ONE_ADDRESS),
        group_objects(),
        group_objects(ONE_ADDRESS),
        server_objects(replace(SERVER, name="m-" + "x" * 60, resources=Resources(nodes=16))),
        job_objects(),
        job_objects(
            replace(JOB, timeout_s=None, resources=Resources(2**31, 10**10), name="1" * 70)
        ),
    ],
    ids=[
        "server",
        "amd",
        "long name",
        "odd id",
        "plain",
        "one address",
        "group",
        "group at one address",
        "long name of a group",
        "job",
        "other job",
    ],
)
def test_every_manifest_is_valid_safe_and_coherent(objects: list[dict[str, Any]]) -> None:
    assert problems_in(objects) == []


def change(*path: object, to: object) -> Callable[[list[dict[str, Any]]], None]:
    def apply(objects: list[dict[str, Any]]) -> None:
        found: Any = objects
        for part in path[:-1]:
            found = found[part]
        found[path[-1]] = to

    return apply


POD = (0, "spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (change(0, "spec", "replica", to=1), "replica"),
        (change(0, "spec", "replicas", to="one"), "integer"),
        (change(0, "metadata", "name", to="Upper"), "no DNS label"),
        (change(0, "spec", "selector", "matchLabels", "a", to="b"), "does not match its own"),
        (change(2, "spec", "selector", "a", to="b"), "selects nothing"),
        (change(2, "spec", "ports", 0, "targetPort", to=99_999), "no port"),
        (change(2, "spec", "ports", 0, "targetPort", to=8001), "nobody listens"),
        (change(*CONTAINER, "resources", "limits", "memory", to="1 GB"), "no quantity"),
        (change(*CONTAINER, "envFrom", 0, "secretRef", "name", to="other"), "no Secret"),
        (change(*CONTAINER, "securityContext", "capabilities", to={}), "capabilities"),
        (change(*CONTAINER, "securityContext", "readOnlyRootFilesystem", to=False), "written"),
        (change(*CONTAINER, "securityContext", "allowPrivilegeEscalation", to=True), "privileges"),
        (change(*POD, "securityContext", "runAsUser", to=0), "root"),
        (change(*POD, "automountServiceAccountToken", to=True), "API token"),
        (change(*POD, "hostNetwork", to=True), "shares"),
        (change(*POD, "volumes", 1, to={"name": "cache", "hostPath": {"path": "/"}}), "forbidden"),
    ],
)  # fmt: skip
def test_the_checks_find_what_is_wrong(
    spoil: Callable[[list[dict[str, Any]]], None], says: str
) -> None:
    objects = copy.deepcopy(server_objects(options=ONE_ADDRESS))
    spoil(objects)
    assert any(says in problem for problem in problems_in(objects, VERSIONS[-1:]))


def test_service_exists_only_where_it_addresses_all_replicas() -> None:
    assert "Service" not in [found["kind"] for found in server_objects()]
    assert "Service" in [found["kind"] for found in server_objects(options=ONE_ADDRESS)]


def test_a_secret_is_nowhere_but_in_the_secret() -> None:
    *others, secret = server_objects(replace(SERVER, secrets={"URLS": "signature=geheim"}))
    assert secret["kind"] == "Secret"
    assert "geheim" not in str(others)
    assert "c2lnbmF0dXJlPWdlaGVpbQ==" in str(secret)


def test_what_makes_another_pod_makes_another_hash() -> None:
    same = [replace(SERVER, replicas=9), replace(SERVER, secrets={"GUANACO_URLS": "fresh"})]
    other = [replace(SERVER, command=("serve",)), replace(SERVER, environment={})]
    assert {spec_hash(spec, OPTIONS) for spec in same} == {spec_hash(SERVER, OPTIONS)}
    assert spec_hash(SERVER, OPTIONS) not in {spec_hash(spec, OPTIONS) for spec in other}
    assert spec_hash(SERVER, OPTIONS) != spec_hash(SERVER, replace(OPTIONS, engine_image="x:2"))


def test_a_larger_artifact_may_take_longer_to_start() -> None:
    small, large = (
        deployment_object(replace(SERVER, artifact_bytes=size), OPTIONS)["spec"]["template"][
            "spec"
        ]["containers"][0]["startupProbe"]["failureThreshold"]
        for size in (0, 100_000_000_000)
    )
    assert small * 5 >= 180
    assert large * 5 >= 2_000


def test_a_kind_of_gpu_that_nobody_named_is_refused() -> None:
    asked = replace(SERVER, resources=Resources(gpu_type="B200", gpu_count=1))
    with pytest.raises(ClusterRefused, match="This cluster has no B200 GPU"):
        deployment_object(asked, OPTIONS)


def test_an_operators_fields_are_added_to_the_pods() -> None:
    toleration = {"key": "spot", "operator": "Exists"}
    options = replace(
        OPTIONS,
        server_fields={
            "tolerations": [toleration],
            "nodeSelector": {"pool": "gpus"},
            "runtimeClassName": "nvidia",
            "imagePullSecrets": [{"name": "registry"}],
        },
        job_fields={"nodeSelector": {"pool": "cpus"}},
    )
    pod = deployment_object(SERVER, options)["spec"]["template"]["spec"]
    assert [each["key"] for each in pod["tolerations"]][-2:] == ["nvidia.com/gpu", "spot"]
    assert pod["nodeSelector"] == {"gpu.test/kind": "h100", "pool": "gpus"}
    assert (pod["runtimeClassName"], pod["imagePullSecrets"]) == ("nvidia", [{"name": "registry"}])
    assert problems_in(server_objects(options=options)) == []
    job = job_object(JOB, options)["spec"]["template"]["spec"]
    assert job["nodeSelector"] == {"pool": "cpus"}
    assert "runtimeClassName" not in job


@pytest.mark.parametrize("field", ["containers", "securityContext", "hostNetwork", "volumes"])
def test_what_confines_a_pod_is_not_the_operators_to_set(field: str) -> None:
    with pytest.raises(InvalidSettings, match=f"kubernetes_server_pod cannot set {field} of a pod"):
        options_of(Settings(kubernetes_server_pod={field: []}), "models")


def test_an_operators_preference_is_not_taken_for_ours() -> None:
    matched = [{"key": "metadata.name", "operator": "NotIn", "values": ["node-9"]}]
    term = {"weight": 5, "preference": {"matchFields": matched}}
    fields = {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    }
    options = replace(OPTIONS, cache_path="/models", server_fields=fields)
    placed = replace(SERVER, near=("node-7",))
    for _ in range(2):
        pod = deployment_object(placed, options)["spec"]["template"]["spec"]
        placed = replace(SERVER, near=near_of(pod, options.server_fields))
        assert placed.near == ("node-7",)


def test_pods_prefer_the_machines_that_have_their_artifact() -> None:
    here = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    options = replace(
        OPTIONS, cache_path="/models", server_fields={"affinity": {"nodeAffinity": here}}
    )
    near = replace(SERVER, near=("node-7", "node-3"))
    made = deployment_object(near, options)
    pod = made["spec"]["template"]["spec"]
    assert near_of(pod) == ("node-7", "node-3")
    node = pod["affinity"]["nodeAffinity"]
    assert here.items() <= node.items(), "what the operator asks for stays"
    weights = [one["weight"] for one in node["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert weights == sorted(weights, reverse=True)
    found = problems_in(server_objects(near, replace(options, server_fields={})))
    assert [one for one in found if "the volume cache is" not in one] == []
    assert spec_hash(near, options) == spec_hash(SERVER, options)
    own = deployment_object(near, replace(OPTIONS, cache_path=None))
    assert "affinity" not in own["spec"]["template"]["spec"], "each pod has a cache of its own"


def test_artifacts_may_be_kept_where_they_outlive_the_pod() -> None:
    asked = replace(SERVER, resources=Resources(disk_bytes=30, cache_bytes=20, gpu_count=1))
    claimed, on_node = (
        replace(OPTIONS, cache_claim="models"),
        replace(OPTIONS, cache_path="/models"),
    )
    expected = [
        (OPTIONS, {"emptyDir": {"sizeLimit": "20"}}, "30"),
        (claimed, {"persistentVolumeClaim": {"claimName": "models"}}, "10"),
        (on_node, {"hostPath": {"path": "/models", "type": "Directory"}}, "10"),
    ]
    for options, volume, storage in expected:
        pod = deployment_object(asked, options)["spec"]["template"]["spec"]
        cache = next(each for each in pod["volumes"] if each["name"] == "cache")
        assert cache == {"name": "cache", **volume}
        assert pod["containers"][0]["resources"]["limits"]["ephemeral-storage"] == storage
        job = job_object(JOB, options)["spec"]["template"]["spec"]
        assert all("emptyDir" in each for each in job["volumes"])
    assert problems_in(server_objects(options=claimed)) == []


@pytest.mark.parametrize("text", ["", "10.0.0.0", "10.0.0.0/99:443", "10.0.0.0/8:0", "store:443"])
def test_egress_that_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        Egress.parse(text)


def test_egress_by_either_family() -> None:
    assert Egress.parse("10.0.0.0/8:443") == Egress("10.0.0.0/8", 443)
    assert Egress.parse("[fd00::/8]:9000") == Egress("fd00::/8", 9000)


def test_private_addresses_are_left_out_unless_they_are_named() -> None:
    everything = Egress("0.0.0.0/0", 443).private
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(everything)
    assert {"fc00::/7", "fe80::/10"} <= set(Egress.parse("[::/0]:443").private)
    assert Egress("10.42.0.0/16", 9000).private == ()  # a store in the cluster
    assert Egress("10.0.0.0/8", 443).private == ()
    assert Egress("192.0.0.0/8", 443).private == ("192.168.0.0/16",)
    (policy,) = (found for found in job_objects(JOB, OPTIONS) if found["kind"] == "NetworkPolicy")
    blocks = [rule["to"][0]["ipBlock"] for rule in policy["spec"]["egress"] if "to" in rule]
    assert [(block["cidr"], "except" in block) for block in blocks] == [
        ("10.1.0.0/16", False),
        ("0.0.0.0/0", True),
    ]


def test_every_volume_has_a_limit() -> None:
    for made in (deployment_object(SERVER, OPTIONS), job_object(JOB, OPTIONS)):
        volumes = made["spec"]["template"]["spec"]["volumes"]
        assert all(int(volume["emptyDir"]["sizeLimit"]) > 0 for volume in volumes)


def test_model_servers_wait_in_the_queue_that_the_operator_names() -> None:
    settings = Settings(kubernetes_queue="models")
    options = replace(OPTIONS, queue=options_of(settings, "models").queue)
    queued, free = deployment_object(SERVER, options), deployment_object(SERVER, OPTIONS)
    labels = queued["spec"]["template"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "models"
    assert "kueue.x-k8s.io/queue-name" not in queued["metadata"]["labels"]
    assert "kueue.x-k8s.io/queue-name" not in free["spec"]["template"]["metadata"]["labels"]
    assert spec_hash(SERVER, options) == spec_hash(SERVER, OPTIONS)  # what runs is left alone


def test_a_competitions_queue_goes_before_the_operators() -> None:
    options = replace(OPTIONS, queue="models")
    spec = replace(SERVER, queue="autumn")
    labels = deployment_object(spec, options)["spec"]["template"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "autumn"
    over_two = workload_object(replace(spec, resources=Resources(nodes=2)), options)
    assert over_two["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "autumn"
    template = over_two["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    assert "kueue.x-k8s.io/queue-name" not in template["metadata"]["labels"], (
        "a group is admitted whole"
    )


def test_group_is_pods_of_one_command_with_one_leader() -> None:
    group_set, policy, service, *_ = group_objects(ONE_ADDRESS)
    groups = group_set["spec"]["leaderWorkerTemplate"]
    leader, worker = groups["leaderTemplate"]["spec"], groups["workerTemplate"]["spec"]
    assert (group_set["kind"], group_set["spec"]["replicas"], groups["size"]) == (
        "LeaderWorkerSet",
        2,
        2,
    )
    (leading,), (working,) = leader["containers"], worker["containers"]
    assert leading["command"] == working["command"]
    assert working["command"][-4:] == [
        *("--node-rank", "$(LWS_WORKER_INDEX)"),
        *("--master-addr", "$(LWS_LEADER_ADDRESS)"),
    ]
    assert leading["resources"] == working["resources"]
    assert leading["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert leading["readinessProbe"]
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & set(working)
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    pods = {"podSelector": policy["spec"]["podSelector"]}
    assert {"to": [pods]} in policy["spec"]["egress"], "ranks talk on ports that they choose"
    assert {"from": [pods]} in policy["spec"]["ingress"]


def test_group_name_leaves_room_for_its_stateful_sets() -> None:
    named = replace(SERVER, name="m-" + "x" * 60, resources=Resources(nodes=2))
    name = workload_object(named, OPTIONS)["metadata"]["name"]
    assert len(f"{name}-12345-0123456789") <= 63


def test_one_machine_more_adds_a_pod() -> None:
    assert spec_hash(replace(SERVER, resources=Resources(nodes=2)), OPTIONS) != spec_hash(
        replace(SERVER, resources=Resources()), OPTIONS
    )
    assert (
        deployment_object(SERVER, OPTIONS)["metadata"]["labels"]["guanaco.dev/spec"]
        in (GOLDEN / "kubernetes-server.yaml").read_text()
    )


def test_the_platforms_pods_reach_no_private_address() -> None:
    policies = yaml.safe_load_all((Path(__file__).parents[2] / "k8s/base/network.yaml").read_text())
    (found,) = [one for one in policies if one["metadata"]["name"] == "platform-egress"]
    (block,) = [to["ipBlock"] for rule in found["spec"]["egress"] for to in rule.get("to", ())]
    assert block["except"] == sorted(Egress("0.0.0.0/0", 443).private, key=ip_network)
