"""A cluster for a part of a campaign: the tests' API server and its nodes, which run the pods' commands as processes here.

The platform reaches the API server through a proxy, so that it can be away, slow or cut off; its nodes go on meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, text

from benchmarks.faults.auditor import Finding
from benchmarks.faults.proxy import FaultyProxy, in_front_of_port
from guanaco_server.deployments.engines.specs import deployment_name
from tests.fixtures.fake_kubernetes.kubelet import Kubelet
from tests.fixtures.kubernetes import FakeWorld, fake_world
from tests.fixtures.ports import free_port

NAME = "guanaco.dev/name"
NAMESPACE = "models"
RESTART_S = 2.0  # a real node waits 10 s at first, then longer
SHARED = ("events", "leases", "namespaces")  # of no single submission
SERVERS = "SELECT coalesce(server, submission_id) FROM deployments"
Objects = Mapping[tuple[str, str, str], Mapping[str, Any]]


@dataclass
class PodCluster:
    world: FakeWorld
    proxy: FaultyProxy
    settings: Mapping[str, object]
    _nodes: ExitStack

    @property
    def kubelet(self) -> Kubelet:
        return self.world.kubelet

    def stop_nodes(self) -> None:
        """End every pod's process, as a machine that is switched off does. Doing it twice changes nothing."""
        self._nodes.close()


@asynccontextmanager
async def pod_cluster(folder: Path, engine_python: Path) -> AsyncIterator[PodCluster]:
    with ExitStack() as nodes:
        world = nodes.enter_context(fake_world(folder))
        world.kubelet.back_off_s = RESTART_S
        inner, port = urlsplit(world.server.url).port, free_port()
        assert inner is not None
        async with in_front_of_port(inner, port) as proxy:
            kubeconfig = world.server.write_kubeconfig(folder / "kubeconfig")
            kubeconfig.write_text(kubeconfig.read_text().replace(f":{inner}", f":{port}"))
            settings = {
                "cluster": "kubernetes",
                "kubernetes_kubeconfig": str(kubeconfig),
                "kubernetes_contexts": [f"fake:{NAMESPACE}"],
                "kubernetes_python": str(engine_python),
                "kubernetes_engine_egress": ["127.0.0.0/8:443"],
                "engine_image": "registry.test/engine:1",
                "serializer_image": "registry.test/serializer:1",
            }
            yield PodCluster(world, proxy, settings, nodes)


def orphaned_pods(objects: Objects, engine: Engine) -> list[Finding]:
    """Find objects of the cluster that no deployment requests, pods without an owner, and pods that are there twice."""
    with engine.connect() as tables:
        keys = list(tables.execute(text(SERVERS)).scalars())
    wished = {deployment_name(key) for key in keys}
    owners = {found["metadata"]["uid"] for found in objects.values()}
    left = [
        f"{kind} {name} of {_name(found)!r}"
        for (kind, _, name), found in objects.items()
        if kind not in SHARED and _name(found) not in wished
    ]
    left += [
        f"pod {name} without an owner"
        for (kind, _, name), found in objects.items()
        if kind == "pods" and not owners & set(_owners(found))
    ]
    pods = Counter(_name(found) for (kind, _, _), found in objects.items() if kind == "pods")
    left += [f"{count} pods of {name}" for name, count in pods.items() if count > 1]
    return [Finding("orphaned pods", sentence) for sentence in left]


def _name(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("annotations", {}).get(NAME, ""))


def _owners(found: Mapping[str, Any]) -> Iterable[str]:
    return (one["uid"] for one in found["metadata"].get("ownerReferences", ()))
