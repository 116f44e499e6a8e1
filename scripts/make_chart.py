"""Writes charts/guanaco from the overlays of k8s/; a test fails when the two differ. Usage: make chart

One source: kustomize's. An object that is the same in the overlays production, nvidia and amd is written once, another
one once for each. What an installation decides becomes a value (`values.yaml`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "guanaco"
OVERLAYS = {"": "production", "nvidia": "nvidia", "amd": "amd"}  # by the value `gpus`
PLATFORM, MODELS = "guanaco", "guanaco-models"
SETTINGS = re.compile(r"guanaco-settings-[a-z0-9]{10}")
WORKER_VALUES = {
    "GUANACO_KUBERNETES_NAMESPACE": "modelsNamespace",
    "GUANACO_KUBERNETES_PLATFORM_NAMESPACE": "namespace",
    "GUANACO_SERIALIZER_IMAGE": "images.serializer",
    "GUANACO_ENGINE_IMAGE": "{gpus}.engineImage",
    "GUANACO_KUBERNETES_POOLS": "pools",
    "GUANACO_GPU_TYPES": "{gpus}.gpuTypes",
    "GUANACO_KUBERNETES_GPU_NODES": "{gpus}.gpuNodes",
    "GUANACO_GPUS_PER_MACHINE": "{gpus}.gpusPerMachine",
    "GUANACO_ENGINE_CACHE_BYTES": "{gpus}.engineCacheBytes",
}
NOTICE = "# Written by `make chart` from k8s/. Change it there.\n"
VALUES_NOTICE = NOTICE + "# Secrets are made beforehand, as docs/operating.md says.\n"

Object = dict[str, Any]


class Values:
    """Collects what becomes a value, and leaves a mark in its place."""

    def __init__(self) -> None:
        self.tree: Object = {"gpus": ""}

    def mark(self, path: str, default: Any) -> str:
        *folders, name = path.split(".")
        place = self.tree
        for folder in folders:
            place = place.setdefault(folder, {})
        assert place.setdefault(name, default) == default, path
        return f"VALUE.{path}.{'NUMBER' if isinstance(default, int) else 'TEXT'}"


def write(overlays: dict[str, list[Object]]) -> dict[str, str]:
    """Return the files of the chart by their names. ``overlays`` are the objects of each, by the value `gpus`."""
    values = Values()
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for gpus, objects in overlays.items():
        for one in objects:
            text = _as_template(one, gpus or "cpu", values)
            found.setdefault(_key(one), {})[gpus] = text
    parts = [_choice(found[key]) for key in sorted(found)]
    return {
        "Chart.yaml": NOTICE + yaml.safe_dump(
            {"apiVersion": "v2", "name": "guanaco", "description": "Guanaco on Kubernetes",
             "type": "application", "version": "0.1.0", "appVersion": "0.1.0"}, sort_keys=False),
        "values.yaml": VALUES_NOTICE + yaml.safe_dump(values.tree, sort_keys=False, width=10_000),
        "templates/guanaco.yaml": NOTICE + "".join(parts),
    }  # fmt: skip


def _key(one: Object) -> tuple[str, str, str]:
    name = SETTINGS.sub("guanaco-settings", one["metadata"]["name"])
    return one["kind"], one["metadata"].get("namespace", ""), name


def _choice(texts: dict[str, str]) -> str:
    """One text, or one for each value of `gpus`."""
    if len(set(texts.values())) == 1 and len(texts) == len(OVERLAYS):
        return next(iter(texts.values()))
    cases = [
        f'{{{{- {"else " if at else ""}if eq .Values.gpus "{gpus}" }}}}\n{text}'
        for at, (gpus, text) in enumerate(texts.items())
    ]
    return "".join([*cases, "{{- end }}\n"])


def _as_template(one: Object, gpus: str, values: Values) -> str:
    if SETTINGS.fullmatch(one["metadata"]["name"]):
        values.tree.setdefault("settings", one["data"])
        one = {**one, "data": "SETTINGS"}
    marked = _marked(one, one["kind"], gpus, values)
    text = yaml.safe_dump(marked, sort_keys=False, width=100_000).replace("{{", '{{ "{{" }}')
    text = SETTINGS.sub(
        "guanaco-settings-{{ .Values.settings | toJson | sha256sum | trunc 10 }}", text
    )
    text = text.replace("migration-REVISION", "migration-{{ .Release.Revision }}")
    text = text.replace("data: SETTINGS", "data:\n  {{- toYaml .Values.settings | nindent 2 }}")
    text = re.sub(r"VALUE\.([\w.]+)\.NUMBER", r"{{ .Values.\1 }}", text)
    return "---\n" + re.sub(r"VALUE\.([\w.]+)\.TEXT", r"{{ .Values.\1 | quote }}", text)


def _marked(one: Object, kind: str, gpus: str, values: Values) -> Any:
    """Return the object with marks for values."""

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if (path := WORKER_VALUES.get(value.get("name", ""))) and "value" in value:
                marked = values.mark(path.format(gpus=gpus), value["value"])
                return {"name": value["name"], "value": marked}
            return {name: walk(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, key) for inner in value]
        return leaf(value, key)

    def leaf(value: Any, key: str) -> Any:
        names_a_namespace = key in ("namespace", "kubernetes.io/metadata.name", "matchNames") or (
            kind == "Namespace" and key == "name"
        )
        if names_a_namespace and value in (PLATFORM, MODELS):
            return values.mark("namespace" if value == PLATFORM else "modelsNamespace", value)
        if key == "kubernetes.io/metadata.name":
            return values.mark(f"{value.partition('-')[0]}Namespace", value)
        if key == "image":
            return values.mark("images.platform", value)
        if kind == "Ingress" and key in ("host", "hosts"):
            return values.mark("ingress.host", value)
        if key == "runbook_url":
            host = urlsplit(value).hostname or ""
            return value.replace(host, values.mark("ingress.host", host).replace("TEXT", "NUMBER"))
        if key == "ingressClassName":
            return values.mark("ingress.className", value)
        if kind == "HorizontalPodAutoscaler" and key in ("minReplicas", "maxReplicas"):
            return values.mark(f"api.{key}", value)
        if kind == "StatefulSet" and key == "replicas":
            return values.mark("worker.replicas", value)
        if kind == "Job" and value == "guanaco-migration" and key == "name":
            return "guanaco-migration-REVISION"
        return value

    return walk(one)


def main() -> None:
    overlays = {}
    for gpus, overlay in OVERLAYS.items():
        shown = subprocess.run(
            ["kubectl", "kustomize", str(ROOT / "k8s" / "overlays" / overlay)],
            capture_output=True,
            text=True,
            check=True,
        )
        overlays[gpus] = [one for one in yaml.safe_load_all(shown.stdout) if one]
    for name, text in write(overlays).items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)
        sys.stdout.write(f"{CHART / name}\n")


if __name__ == "__main__":
    main()
