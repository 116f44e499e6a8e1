"""Every overlay, built as `kubectl apply -k` builds it: valid, and right where schemas do not look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from starlette.routing import Mount

from guanaco.plans import PlanRequest
from guanaco_cli import words
from guanaco_cli.gpus import _row
from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.manifests.objects import deployment_object, owned_objects
from guanaco_server.clusters.kubernetes.manifests.pods import PORT
from guanaco_server.clusters.kubernetes.options import KubernetesOptions, options_of
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import to_resources
from guanaco_server.http import api_document
from guanaco_server.recipes.comparison import compare_gpus
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import LLAMA_3_8B, QWEN3_235B_FP8
from guanaco_server.recipes.recipe import Needs, choose
from guanaco_server.settings import Settings, load_settings
from tests.fixtures.manifests import OVERLAYS, Object, build, name_of, of_kind, pod_templates, walk
from tests.fixtures.world import World

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
OLDEST, NEWEST = "1.28", "1.34"
CUSTOM = {"monitoring.coreos.com/v1"}
CLUSTER_WIDE = {"Namespace", "PriorityClass"}
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?|)")
DURATION = re.compile(r"\d+(ms|s|m|h)")
# Objects that an operator makes before the first apply: docs/operating.md.
GIVEN_SECRETS = {
    "guanaco-database": {"url"},
    "guanaco-artifacts": {"access-key-id", "secret-access-key"},
    "guanaco-keys": {"pseudonym-key"},
    "guanaco-hub": {"token"},
    "guanaco-alerts": {"url"},
    "guanaco-tls": set[str](),
}
RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(objects: list[Object], version: str) -> None:
    for found in objects:
        if found["apiVersion"] not in CUSTOM:
            kubernetes_validate.validate(found, version, strict=True)


def test_names_are_names_and_no_two_objects_have_the_same(objects: list[Object]) -> None:
    names = [name_of(found) for found in objects]
    assert sorted(set(names)) == sorted(names)
    for found in objects:
        assert NAME.fullmatch(found["metadata"]["name"]), name_of(found)
        assert ("namespace" in found["metadata"]) == (found["kind"] not in CLUSTER_WIDE), name_of(
            found
        )
    namespaces = {found["metadata"]["name"] for found in of_kind(objects, "Namespace")}
    assert {found["metadata"].get("namespace") for found in objects} - {None} == namespaces


def test_both_namespaces_enforce_restricted_pods(objects: list[Object]) -> None:
    for namespace in of_kind(objects, "Namespace"):
        for mode in ("enforce", "warn", "audit"):
            assert (
                namespace["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"]
                == "restricted"
            )


def test_every_pod_is_restricted_and_has_a_read_only_root(objects: list[Object]) -> None:
    for workload, template in pod_templates(objects):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name_of(workload)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= RESTRICTED_VOLUMES
        for container in spec["containers"] + spec.get("initContainers", []):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not any("hostPort" in port for port in container.get("ports", []))
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}
            assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


def test_selectors_find_pods_and_match_their_own_templates(objects: list[Object]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pod_templates(objects)]
    for workload, template in pod_templates(objects):
        if workload["kind"] not in ("Job", "CronJob"):
            wanted = workload["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= template["metadata"]["labels"].items(), name_of(workload)
    for found in of_kind(objects, "Service"):
        assert sum(matches({"matchLabels": found["spec"]["selector"]}, pod) for pod in labels) == 1
    for found in of_kind(objects, "PodDisruptionBudget"):
        assert sum(matches(found["spec"]["selector"], pod) for pod in labels) == 1
    for found in of_kind(objects, "NetworkPolicy"):
        selector = found["spec"]["podSelector"]
        there = [*labels, server_labels()]
        assert not selector or any(matches(selector, pod) for pod in there), name_of(found)
    for _, template in pod_templates(objects):
        for spread in template["spec"].get("topologySpreadConstraints", []):
            assert matches(spread["labelSelector"], template["metadata"]["labels"])


def test_ports_are_ports_and_their_names_lead_somewhere(objects: list[Object]) -> None:
    services = {found["metadata"]["name"]: found for found in of_kind(objects, "Service")}
    for workload, template in pod_templates(objects):
        for container in template["spec"]["containers"]:
            named = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            assert all(0 < port < 65_536 for port in named.values())
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if workload["kind"] not in ("Job", "CronJob"):
                    assert container[probe]["httpGet"]["port"] in named
            for service in services.values():
                if service["spec"]["selector"] == template["metadata"]["labels"]:
                    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(named)
    for ingress in of_kind(objects, "Ingress"):
        for key, backend in walk(ingress["spec"]):
            if key == "service":
                ports = {port["name"] for port in services[backend["name"]]["spec"]["ports"]}
                assert backend["port"]["name"] in ports
    for found in of_kind(objects, "NetworkPolicy"):
        for key, port in walk(found["spec"]):
            assert key != "port" or 0 < port < 65_536


def test_quantities_are_quantities(objects: list[Object]) -> None:
    places = ("requests", "limits", "hard", "default", "defaultRequest", "max", "min")
    for found in of_kind(
        objects, "Deployment", "StatefulSet", "Job", "ResourceQuota", "LimitRange"
    ):
        for key, value in walk(found["spec"]):
            if key in places and isinstance(value, dict):
                assert all(QUANTITY.fullmatch(str(amount)) for amount in value.values()), value
            if key == "sizeLimit":
                assert QUANTITY.fullmatch(value)


def test_whatever_is_referred_to_is_there(objects: list[Object]) -> None:
    there = {name_of(found) for found in objects}
    for workload, template in pod_templates(objects):
        namespace, spec = workload["metadata"]["namespace"], template["spec"]
        assert f"ServiceAccount/{namespace}/{spec['serviceAccountName']}" in there
        assert f"PriorityClass//{spec['priorityClassName']}" in there
        for key, reference in walk(spec):
            if key == "configMapRef":
                assert f"ConfigMap/{namespace}/{reference['name']}" in there
            if key == "secretKeyRef":
                assert reference["key"] in GIVEN_SECRETS[reference["name"]]
        if workload["kind"] == "StatefulSet":
            assert f"Service/{namespace}/{workload['spec']['serviceName']}" in there
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert f"{target['kind']}/{scaler['metadata']['namespace']}/{target['name']}" in there
    for binding in of_kind(objects, "RoleBinding"):
        assert f"Role/{binding['metadata']['namespace']}/{binding['roleRef']['name']}" in there
        for subject in binding["subjects"]:
            assert f"ServiceAccount/{subject['namespace']}/{subject['name']}" in there


def test_a_component_gives_the_platforms_pods_the_stores_certificates(tmp_path: Path) -> None:
    found = build("dev", tmp_path, components=("store-ca",))
    for workload, template in pod_templates(found):
        (container,) = template["spec"]["containers"]
        given = {variable["name"]: variable.get("value") for variable in container["env"]}
        if workload["kind"] == "Job":
            continue  # the migration needs no store
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        folder, _, file = str(given["GUANACO_S3_CA_FILE"]).rpartition("/")
        assert volumes[mounts[folder]]["configMap"]["name"] == "guanaco-store-ca"
        assert f"guanaco-store-ca --from-file={file}" in OPERATING.read_text()
        assert "GUANACO_DATABASE_URL" in given


def test_a_component_keeps_the_images_of_models_on_the_nodes(tmp_path: Path) -> None:
    found = build("dev", tmp_path, components=("image-pull",))
    (pulling,) = of_kind(found, "DaemonSet")
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(pulling, version, strict=True)
    settings, spec = worker_settings(found), pulling["spec"]["template"]["spec"]
    images = {container["image"] for container in spec["containers"]}
    assert images == {settings.engine_image, settings.serializer_image}
    assert f"PriorityClass//{spec['priorityClassName']}" in {name_of(one) for one in found}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"] == "16Mi"


def test_prometheus_reaches_the_model_servers_of_the_worker(
    tmp_path: Path,
) -> None:
    objects = build("production", tmp_path)
    (monitor,) = of_kind(objects, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    pod = deployment_object(SERVED, KubernetesOptions("guanaco-models", "e:1", "s:1", "w-1"))
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    assert matches(monitor["spec"]["selector"], server_labels())
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == ["guanaco-models"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    (relabeling,) = endpoint["relabelings"]
    (source,) = relabeling["sourceLabels"]
    labels = {re.sub(r"[^A-Za-z0-9_]", "_", name) for name in server_labels()}
    assert source.removeprefix("__meta_kubernetes_pod_label_") in labels
    (policy,) = [
        found
        for found in of_kind(objects, "NetworkPolicy")
        if found["metadata"]["namespace"] == "guanaco-models" and found["spec"].get("ingress")
    ]
    assert matches(policy["spec"]["podSelector"], server_labels())
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": PORT}]


SERVED = DeploymentSpec("m-tiny", ("serve",), submission_id="acme-tiny_v1")


def server_labels() -> dict[str, str]:
    """The labels of the pods that the worker makes."""
    options = KubernetesOptions("guanaco-models", "engine:1", "serializer:1", "worker-1")
    labels: dict[str, str] = deployment_object(SERVED, options)["spec"]["template"]["metadata"][
        "labels"
    ]
    return labels


@pytest.mark.parametrize(
    ("overlay", "resource", "model", "gpus"),
    [
        ("nvidia", "nvidia.com/gpu", LLAMA_3_8B, 1),
        ("nvidia", "nvidia.com/gpu", QWEN3_235B_FP8, 8),
        ("amd", "amd.com/gpu", QWEN3_235B_FP8, 2),
    ],
)
def test_gpu_overlay_requests_what_the_plan_says(
    overlay: str, resource: str, model: dict[str, Any], gpus: int, tmp_path: Path
) -> None:
    objects = build(overlay, tmp_path)
    settings = worker_settings(objects)
    recipe = choose(
        Model("m", read_shape(model)), Needs(2_048, 16, 20), settings.recipe_policy.fleet
    )
    assert recipe.machine is not None
    options = options_of(settings, "guanaco-models")
    asked = to_resources(recipe, settings.recipe_policy)
    spec = DeploymentSpec("m-tiny", ("serve",), resources=asked)
    pod = deployment_object(spec, options)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        resource: str(gpus),
        "memory": str(recipe.machine.memory_bytes),
        "ephemeral-storage": str(recipe.machine.disk_bytes),
    }
    assert container["resources"]["requests"]["cpu"] == str(2 + gpus)
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    assert volumes["shm"] == {
        "medium": "Memory",
        "sizeLimit": str(recipe.machine.shared_memory_bytes),
    }
    disks = sum(int(volumes[name]["sizeLimit"]) for name in ("tmp", "cache"))
    assert disks == recipe.machine.disk_bytes
    assert pod["nodeSelector"] == options.gpu_nodes[recipe.gpu_type]
    assert container["image"].endswith({"nvidia": "-cuda", "amd": "-rocm"}[overlay])
    (quota,) = of_kind(objects, "ResourceQuota")
    assert int(quota["spec"]["hard"][f"requests.{resource}"]) >= gpus
    (limits,) = of_kind(objects, "LimitRange")
    most = limits["spec"]["limits"][0]["max"]["memory"]
    assert recipe.machine.memory_bytes <= int(most.removesuffix("Gi")) * 2**30


@pytest.mark.parametrize(
    ("overlay", "gpu", "model"),
    [
        ("nvidia", "H100", LLAMA_3_8B),
        ("nvidia", "L40S", LLAMA_3_8B),
        ("nvidia", "H100", QWEN3_235B_FP8),
        ("amd", "MI300X", QWEN3_235B_FP8),
    ],
)
def test_guanaco_plan_prints_what_the_overlays_pods_ask_for(
    overlay: str, gpu: str, model: dict[str, Any], tmp_path: Path
) -> None:
    settings = worker_settings(build(overlay, tmp_path))
    policy = settings.recipe_policy
    found = compare_gpus(
        Model("m", read_shape(model)),
        PlanRequest(model="m", gpus=[gpu]),
        policy.fleet.prices,
        policy.fleet.max_gpus,
    )
    (line,) = found.plans
    assert line.plan is not None
    recipe = line.plan.recipe
    spec = DeploymentSpec("m-tiny", ("serve",), resources=to_resources(recipe, policy))
    pod = deployment_object(spec, options_of(settings, "guanaco-models"))
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    asked = dict(container["resources"]["requests"])
    cpus, memory, disk = (asked.pop(name) for name in ("cpu", "memory", "ephemeral-storage"))
    printed = _row(gpu, line.plan)
    assert printed[-1] == f"{cpus} CPUs, {words.size(int(memory))}, {words.size(int(disk))} disk"
    (gpus,) = asked.values()
    assert str(printed[1]).startswith(f"{gpus} GPU")


def worker_settings(objects: list[Object]) -> Settings:
    """Return what the worker of an overlay would read."""
    given = dict[str, str]()
    for found in of_kind(objects, "ConfigMap"):
        given |= {key: value for key, value in found["data"].items() if key.startswith("GUANACO_")}
    (worker,) = of_kind(objects, "StatefulSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    given |= {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    return load_settings(environ=given).settings


async def test_the_ingress_leads_to_every_route_that_users_need(
    database: Database, tmp_path: Path
) -> None:
    (ingress,) = of_kind(build("production", tmp_path), "Ingress")
    (rule,) = ingress["spec"]["rules"]
    app = World(database).app
    routes = {route for route in all_paths(app.routes)} | set(api_document.read_file()["paths"])
    assert {"/v1/chat/completions", "/docs", "/leaderboard", "/"} <= routes
    left_out = {path for path in routes if not any(leads(p, path) for p in rule["http"]["paths"])}
    assert left_out == {"/healthz", "/readyz", "/metrics"}
    for entry in rule["http"]["paths"]:
        assert any(leads(entry, path) for path in routes), entry


def all_paths(routes: Any) -> Iterator[str]:
    """List the paths of the app's own routes, of included routers and of mounts (static files)."""
    for route in routes:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from all_paths(inner.routes)
        elif path := getattr(route, "path", ""):
            yield f"{path}/x" if isinstance(route, Mount) else path


def leads(entry: dict[str, Any], path: str) -> bool:
    """Match as an Ingress does: Exact, or Prefix by whole elements of the path."""
    if entry["pathType"] == "Exact":
        return bool(path == entry["path"])
    wanted = entry["path"].rstrip("/")
    return path == wanted or path.startswith(f"{wanted}/")


def test_worker_with_wrong_settings_starts_with_corrected_ones(
    objects: list[Object],
) -> None:
    """OrderedReady never replaces a pod that does not get ready, so that it would keep the wrong settings."""
    for found in of_kind(objects, "StatefulSet"):
        assert found["spec"]["podManagementPolicy"] == "Parallel", name_of(found)


def test_no_secret_is_written_down(objects: list[Object]) -> None:
    assert of_kind(objects, "Secret") == []
    for found in objects:
        for key, value in walk(found):
            if key == "env":
                for variable in value:
                    is_secret = re.search(
                        r"SECRET|TOKEN|PASSWORD|_KEY|DATABASE_URL", variable["name"]
                    )
                    assert not is_secret or "secretKeyRef" in variable["valueFrom"], variable


def test_every_variable_is_a_setting_with_a_valid_value(
    objects: list[Object],
) -> None:
    known = {f"GUANACO_{name.upper()}" for name in Settings.model_fields}
    given = dict[str, str]()
    for found in of_kind(objects, "ConfigMap"):
        given |= {key: value for key, value in found["data"].items() if key.startswith("GUANACO_")}
    for _, template in pod_templates(objects):
        for container in template["spec"]["containers"]:
            given |= {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert given.keys() - known == set()
    loaded = load_settings(environ={name: value for name, value in given.items() if value})
    assert loaded.notices == ()


def test_only_the_worker_has_a_token_with_exactly_its_rights(
    objects: list[Object],
) -> None:
    for workload, template in pod_templates(objects):
        is_worker = workload["metadata"]["name"] == "guanaco-worker"
        assert template["spec"]["automountServiceAccountToken"] is is_worker, name_of(workload)
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    (binding,) = of_kind(objects, "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["guanaco-worker"]
    (role,) = of_kind(objects, "Role")
    allowed = {
        resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]
    }
    assert not any(
        "*" in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]} for rule in role["rules"]
    )
    assert allowed["secrets"] == {"create", "patch"}
    assert (
        allowed["deployments"]
        == allowed["jobs"]
        == {"get", "list", "watch", "create", "patch", "delete"}
    )
    assert allowed["leases"] == {"get", "create", "update"}
    assert allowed["pods/log"] == {"get"}
    assert not {
        "roles",
        "rolebindings",
        "serviceaccounts",
        "pods/exec",
        "nodes",
        "configmaps",
    } & set(allowed)


def test_both_namespaces_deny_what_is_not_allowed(objects: list[Object]) -> None:
    denying = {
        found["metadata"]["namespace"]
        for found in of_kind(objects, "NetworkPolicy")
        if found["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    }
    assert denying == {"guanaco", "guanaco-models"}


def test_gateways_and_workers_reach_every_model_port(objects: list[Object]) -> None:
    """Policies hold for pods' own addresses: both sides must allow it."""
    options = KubernetesOptions(
        "guanaco-models", "engine:1", "serializer:1", "worker-1", platform_namespace="guanaco"
    )
    spec = DeploymentSpec("m-tiny", ("serve",))
    deployment = {**deployment_object(spec, options)}
    deployment["metadata"] = {**deployment["metadata"], "uid": "1"}
    (policy,) = of_kind(owned_objects(spec, options, deployment), "NetworkPolicy")
    (entrance,) = policy["spec"]["ingress"]
    (peer,) = entrance["from"]
    assert entrance["ports"] == [{"protocol": "TCP", "port": PORT}]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "guanaco"}
    exits = [
        found["spec"]
        for found in of_kind(objects, "NetworkPolicy")
        if any(
            {"protocol": "TCP", "port": PORT} in rule["ports"]
            for rule in found["spec"].get("egress", [])
        )
    ]
    for component in ("api", "worker"):
        (template,) = [
            template
            for _, template in pod_templates(objects)
            if template["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        labels = template["metadata"]["labels"]
        assert matches(peer["podSelector"], labels)
        assert any(matches(found["podSelector"], labels) for found in exits)


def test_images_have_versions_and_the_executors_name_is_the_pods(objects: list[Object]) -> None:
    for workload, template in pod_templates(objects):
        for container in template["spec"]["containers"]:
            assert re.search(r":\d+\.\d+\.\d+$", container["image"]), container["image"]
            variables = {variable["name"]: variable for variable in container["env"]}
            if workload["kind"] == "StatefulSet":
                source = variables["GUANACO_EXECUTOR_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
                assert source == "metadata.name"


def test_the_operators_page_names_every_secret(objects: list[Object]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    for name, keys in GIVEN_SECRETS.items():
        assert name in page
        assert all(key in page for key in keys)


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Match as Kubernetes does; of expressions, those that are used here."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
