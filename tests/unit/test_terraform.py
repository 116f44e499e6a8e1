"""The Terraform example: it parses, is pinned, refers to what is there, and agrees with the manifests. It is applied nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s" / "terraform" / "aws"
K8S = ROOT / "k8s"


def plain(value: Any) -> Any:
    """The parser's value without its quotes and marks."""
    if isinstance(value, dict):
        return {
            str(plain(key)): plain(inner)
            for key, inner in value.items()
            if not str(key).startswith("__")
        }
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


@pytest.fixture(scope="module")
def blocks() -> dict[str, list[Any]]:
    """All blocks of all files by their kind."""
    found: dict[str, list[Any]] = {}
    for path in sorted(FOLDER.glob("*.tf")):
        for kind, values in plain(hcl2.loads(path.read_text())).items():
            found.setdefault(kind, []).extend(values)
    return found


def named(blocks: dict[str, list[Any]], kind: str) -> dict[str, Any]:
    return {name: body for block in blocks[kind] for name, body in block.items()}


def texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for inner in value.values():
                yield from texts(inner)
        case list():
            for inner in value:
                yield from texts(inner)
        case str():
            yield value


def setting(name: str) -> str:
    base = yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text())
    pairs = dict(line.split("=", 1) for line in base["configMapGenerator"][0]["literals"])
    return str(pairs[name])


def test_every_module_is_pinned_to_one_version(blocks: dict[str, list[Any]]) -> None:
    modules = named(blocks, "module")
    assert set(modules) == {"vpc", "endpoints", "eks", "database", "artifacts"}
    for name, module in modules.items():
        assert module["source"].startswith("terraform-aws-modules/"), name
        assert re.fullmatch(r"\d+\.\d+\.\d+", module["version"]), name
    (providers,) = blocks["terraform"][0]["required_providers"]
    assert all(each["version"].startswith("~> ") for each in providers.values())


def test_references_exist_and_every_variable_is_used(
    blocks: dict[str, list[Any]],
) -> None:
    said = " ".join(texts(list(blocks.values())))
    variables = named(blocks, "variable")
    assert set(re.findall(r"\bvar\.(\w+)", said)) == set(variables)
    assert all(variable["description"] for variable in variables.values())
    assert set(re.findall(r"\bmodule\.(\w+)", said)) <= set(named(blocks, "module"))
    resources = {(kind, name) for block in blocks["resource"] for kind, own in block.items() for name in own}  # fmt: skip
    used = re.findall(r"(?<!data\.)\b(aws_\w+|random_\w+)\.(\w+)", said)
    data = {(kind, name) for block in blocks["data"] for kind, own in block.items() for name in own}
    assert set(used) <= resources | data


def test_bucket_and_rights_match_manifests_and_handbook(
    blocks: dict[str, list[Any]],
) -> None:
    variables = named(blocks, "variable")
    bucket, prefix = variables["bucket"]["default"], variables["prefix"]["default"]
    assert setting("GUANACO_ARTIFACTS_URL") == f"s3://{bucket}/{prefix}"
    assert setting("GUANACO_S3_REGION") == variables["region"]["default"]
    assert {zone[:-1] for zone in variables["zones"]["default"]} == {variables["region"]["default"]}
    page = (ROOT / "docs" / "operating.md").read_text()
    written = json.loads(page.split("```json\n")[1].split("```")[0])
    statements = named(blocks, "data")["aws_iam_policy_document"]["artifacts"]["statement"]
    assert [one["actions"] for one in statements] == [one["Action"] for one in written["Statement"]]


def test_gpu_nodes_match_the_overlay_within_its_quota(
    blocks: dict[str, list[Any]],
) -> None:
    worker, quota = yaml.safe_load_all((K8S / "overlays" / "nvidia" / "gpus.yaml").read_text())
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    settings = {one["name"]: one["value"] for one in container["env"]}
    groups = named(blocks, "variable")["gpu_nodes"]["default"].values()
    assert {group["gpu"] for group in groups} == set(json.loads(settings["GUANACO_GPU_TYPES"]))
    assert {group["gpus"] for group in groups} == {int(settings["GUANACO_GPUS_PER_MACHINE"])}
    most = sum(group["gpus"] * group["max"] for group in groups)
    assert most <= int(quota["spec"]["hard"]["requests.nvidia.com/gpu"])
    assert int(settings["GUANACO_ENGINE_CACHE_BYTES"]) < 75 * 1024**3, "the disk of a node's pod"


def test_database_is_where_the_network_policy_allows(
    blocks: dict[str, list[Any]],
) -> None:
    port = named(blocks, "module")["database"]["port"]
    policies = list(yaml.safe_load_all((K8S / "base" / "network.yaml").read_text()))
    allowed = {
        one["port"]
        for policy in policies
        for rule in policy["spec"].get("egress", [])
        for one in rule.get("ports", [])
    }
    assert port in allowed


def test_secrets_are_hidden_and_the_readme_makes_all_named(
    blocks: dict[str, list[Any]],
) -> None:
    outputs = named(blocks, "output")
    for name, output in outputs.items():
        holds_secret = bool(re.search(r"password|\.secret|access_key", output["value"] if isinstance(output["value"], str) else ""))  # fmt: skip
        assert output.get("sensitive", False) is holds_secret, name
    readme = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"terraform output -raw (\w+)", readme)) == set(outputs) - {"settings"}
    worker = (K8S / "base" / "worker.yaml").read_text()
    for secret, key in re.findall(r"secret generic (\S+) (?:\\\s+)?--from-file=([\w-]+)=", readme):
        assert f"{{name: {secret}, key: {key}}}" in worker
