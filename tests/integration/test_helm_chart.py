"""The Helm chart renders what kustomize builds."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from scripts.make_chart import CHART, OVERLAYS, write
from tests.fixtures.manifests import (
    KUSTOMIZE_5,
    Object,
    build,
    kubectl_version,
    name_of,
    of_kind,
)


@pytest.fixture(scope="module")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    version = kubectl_version()
    if version is not None and version < KUSTOMIZE_5:
        pytest.skip(
            "The chart is written with a newer kubectl, which orders what it merges otherwise."
        )
    return {
        gpus: build(overlay, tmp_path_factory.mktemp(overlay)) for gpus, overlay in OVERLAYS.items()
    }


def test_the_chart_is_the_one_that_make_chart_writes(
    overlays: dict[str, list[Object]],
) -> None:
    for name, text in write(overlays).items():
        assert (CHART / name).read_text() == text, f"{name}: run `make chart`"


@pytest.mark.parametrize("gpus", OVERLAYS)
def test_the_chart_renders_what_kustomize_builds(
    gpus: str, overlays: dict[str, list[Object]]
) -> None:
    assert by_name(rendered(f"gpus={gpus}")) == by_name(overlays[gpus])


def test_values_change_what_is_rendered() -> None:
    found = rendered(
        "gpus=nvidia",
        "namespace=acme",
        "modelsNamespace=acme-models",
        "images.platform=registry.test/guanaco:2",
        "nvidia.engineImage=registry.test/engine:2",
        "ingress.host=guanaco.acme.test",
        "worker.replicas=3",
        "settings.GUANACO_S3_REGION=eu-west-1",
    )
    assert {one["metadata"].get("namespace") for one in found} == {None, "acme", "acme-models"}
    (worker,) = of_kind(found, "StatefulSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert worker["spec"]["replicas"] == 3
    assert container["image"] == "registry.test/guanaco:2"
    assert variables["GUANACO_ENGINE_IMAGE"] == "registry.test/engine:2"
    assert variables["GUANACO_KUBERNETES_NAMESPACE"] == "acme-models"
    (ingress,) = of_kind(found, "Ingress")
    assert ingress["spec"]["rules"][0]["host"] == "guanaco.acme.test"
    settings = {one["metadata"]["name"]: one["data"] for one in of_kind(found, "ConfigMap")}
    (reference,) = container["envFrom"]
    name = reference["configMapRef"]["name"]
    assert settings[name]["GUANACO_S3_REGION"] == "eu-west-1"
    before = {one["metadata"]["name"] for one in of_kind(rendered("gpus=nvidia"), "ConfigMap")}
    assert name not in before  # another name rolls the pods


def rendered(*values: str) -> list[Object]:
    """The chart as Helm renders it, where there is one: Debian does not package it, and CI's machine has none."""
    if shutil.which("helm") is None:
        pytest.skip("There is no helm on the PATH; the chart's text was compared without it.")
    given = [part for value in values for part in ("--set", value)]
    shown = subprocess.run(
        ["helm", "template", "guanaco", str(CHART), *given],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    return [one for one in yaml.safe_load_all(shown.stdout) if one]


def by_name(objects: list[Object]) -> dict[str, Object]:
    """The objects with the names that do not depend on who renders them."""
    text = yaml.safe_dump_all(objects)
    text = re.sub(r"guanaco-settings-[a-z0-9]{10}", "guanaco-settings", text)
    text = text.replace("name: guanaco-migration-1\n", "name: guanaco-migration\n")
    return {name_of(one): one for one in yaml.safe_load_all(text)}
