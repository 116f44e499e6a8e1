"""Options of how the platform uses a Kubernetes cluster, read from the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from typing import Any

from guanaco.errors import InvalidSettings
from guanaco_server.clusters.cluster import Resources
from guanaco_server.clusters.kubernetes.api.client import KubernetesApi, connect
from guanaco_server.clusters.kubernetes.manifests.pod_fields import checked_fields
from guanaco_server.clusters.kubernetes.names import Json
from guanaco_server.settings import Settings
from guanaco_server.settings.kubernetes import PoolSettings

NOTHING_ASKED = Resources()
GIB = 1024**3
ENDPOINT = "http://{address}:8000"
# Loopback, private, carrier-grade NAT, link-local with the clouds' metadata, benchmarks, multicast, reserved.
PRIVATE = tuple(
    map(
        ip_network,
        (
            *(
                "0.0.0.0/8",
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
            ),
            *("192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
            *("::1/128", "fc00::/7", "fe80::/10", "ff00::/8"),
        ),
    )
)


@dataclass(frozen=True)
class Egress:
    """Addresses and a port that pods may connect to, by TCP."""

    cidr: str
    port: int

    @property
    def private(self) -> tuple[str, ...]:
        """The private, link-local and other special networks that lie within, each smaller than the whole."""
        whole = ip_network(self.cidr)
        return tuple(
            str(network)
            for network in PRIVATE
            if network.version == whole.version
            and network.prefixlen > whole.prefixlen
            and network.network_address in whole
        )

    @staticmethod
    def parse(text: str) -> Egress:
        """Parse ``10.0.0.0/8:443`` or ``[fd00::/8]:443``; InvalidSettings for anything else."""
        cidr, _, port = text.rpartition(":")
        try:
            network = ip_network(cidr.strip("[]"))
            if not 0 < int(port) < 65_536:
                raise ValueError(port)
        except ValueError:
            raise InvalidSettings(
                f"{text} names no addresses and port to connect to.", hint="Write 10.0.0.0/8:443."
            ) from None
        return Egress(str(network), int(port))


POOL_NAME = re.compile(r"[a-z]([-a-z0-9]{0,28}[a-z0-9])?")
PORT_IN_ENDPOINT, CONTROL_PORT_IN_ENDPOINT = ":8000", ":8001"


@dataclass(frozen=True)
class PodPool:
    """Pods that wait for a model; each asks for these resources. ``size`` of them wait, or up to ``max_size`` after as many claims."""

    name: str
    size: int
    resources: Resources = NOTHING_ASKED
    max_size: int = 0

    def size_after(self, claims: int) -> int:
        """Return how many pods are to wait after this number of claims."""
        return max(self.size, min(claims, self.max_size))


@dataclass(frozen=True)
class KubernetesOptions:
    """``worker`` names this platform process; ``endpoint`` is a template of a pod's ``address`` and ``pod``, and of ``name`` and ``namespace``.

    ``server_fields`` and ``job_fields`` are added to the pods' spec. A server whose command begins with ``engine_command`` may be a pool's pod, in which ``warm_module`` waits. ``gpu_nodes`` has the node labels of each kind of GPU. ``pending_s`` is how long a pod may wait for a machine.
    """

    namespace: str
    engine_image: str
    serializer_image: str
    worker: str
    endpoint: str = ENDPOINT
    priority_class: str | None = None
    gpu_nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    engine_egress: tuple[Egress, ...] = ()
    serializer_egress: tuple[Egress, ...] = ()
    platform_namespace: str | None = None
    job_defaults: Resources = NOTHING_ASKED
    engine_defaults: Resources = NOTHING_ASKED
    pending_s: float = 300
    cache_bytes: int = 50 * GIB
    job_tmp_bytes: int = 64 * GIB
    cache_claim: str | None = None
    cache_path: str | None = None
    queue: str | None = None
    server_fields: Mapping[str, Any] = field(default_factory=dict)
    job_fields: Mapping[str, Any] = field(default_factory=dict)
    pools: tuple[PodPool, ...] = ()
    engine_command: tuple[str, ...] = ("python", "-m", "guanaco_server.engine.serve")
    warm_module: str = "guanaco_server.engine.pool.warm"

    @property
    def has_replica_addresses(self) -> bool:
        """True if each replica has its own address. Otherwise a Service's address stands for all."""
        return has_replica_addresses(self.endpoint)

    def endpoint_of(self, name: str, pod: Json | None = None) -> str:
        """Return the URL of a Deployment's pod, or of all its pods where they share one; "" while there is none."""
        if not self.has_replica_addresses:
            return self.endpoint.format(name=name, namespace=self.namespace)
        address = pod.get("status", {}).get("podIP") if pod else None
        if pod is None or not address:
            return ""
        return self.endpoint.format(
            name=name,
            namespace=self.namespace,
            pod=pod["metadata"]["name"],
            address=f"[{address}]" if ip_address(address).version == 6 else address,
        )

    def control_endpoint_of(self, pod: Json) -> str:
        """Return the URL at which a pool's pod takes its order; "" while it has no address."""
        control = self.endpoint.replace(PORT_IN_ENDPOINT, CONTROL_PORT_IN_ENDPOINT)
        return replace(self, endpoint=control).endpoint_of(pod["metadata"]["name"], pod)


def has_replica_addresses(endpoint: str) -> bool:
    return "{address}" in endpoint or "{pod}" in endpoint


JOB_ROOM_BYTES = 512 * 1024**2  # beside what the serializer counts: its code, and files in memory

JOB_TMP_ROOM_BYTES = 2 * GIB


def connected(settings: Settings, region: str) -> tuple[KubernetesApi, KubernetesOptions]:
    """Connect to one of the contexts in the settings. InvalidSettings if a setting is missing that pods need."""
    if settings.artifacts_url is None:
        raise InvalidSettings(
            "Pods share no folder: with Kubernetes, artifacts are kept in a bucket.",
            hint="Set artifacts_url.",
        )
    for name in ("engine_image", "serializer_image", "kubernetes_engine_egress"):
        if not getattr(settings, name):
            raise InvalidSettings(f"With Kubernetes, {name} has to be set.")
    context, namespace = split_context(region, settings.kubernetes_namespace)
    options = options_of(settings, namespace, context)
    kubeconfig = settings.kubernetes_kubeconfig
    client = connect(context, str(kubeconfig) if kubeconfig else None)
    return KubernetesApi(client, namespace), options


def options_of(settings: Settings, namespace: str, context: str = "") -> KubernetesOptions:
    return KubernetesOptions(
        namespace=namespace,
        engine_image=settings.engine_image or "",
        serializer_image=settings.serializer_image or "",
        worker=settings.executor_id,
        endpoint=settings.kubernetes_endpoint.replace("{context}", context),
        priority_class=settings.kubernetes_priority_class,
        gpu_nodes=settings.kubernetes_gpu_nodes,
        engine_egress=tuple(map(Egress.parse, settings.kubernetes_engine_egress)),
        serializer_egress=tuple(map(Egress.parse, settings.kubernetes_serializer_egress)),
        platform_namespace=settings.kubernetes_platform_namespace,
        job_defaults=Resources(memory_bytes=settings.serializer_memory_bytes + JOB_ROOM_BYTES),
        pending_s=settings.kubernetes_pending_s,
        cache_bytes=settings.engine_cache_bytes,
        # A Hub that sends whole files only is downloaded before it is streamed.
        job_tmp_bytes=settings.max_weight_bytes + JOB_TMP_ROOM_BYTES,
        cache_claim=settings.kubernetes_cache_claim,
        cache_path=settings.kubernetes_cache_path,
        queue=settings.kubernetes_queue,
        server_fields=checked_fields("kubernetes_server_pod", settings.kubernetes_server_pod),
        job_fields=checked_fields("kubernetes_job_pod", settings.kubernetes_job_pod),
        pools=checked_pools(settings),
        engine_command=(settings.kubernetes_python, "-m", "guanaco_server.engine.serve"),
    )


def checked_pools(settings: Settings) -> tuple[PodPool, ...]:
    """Return the pools that have a size. InvalidSettings where there can be none, or one is not right."""
    pools = settings.kubernetes_pools
    given = [_pool(name, pool) for name, pool in sorted(pools.items())]
    kept = tuple(pool for pool in given if pool.size)
    if not kept:
        return ()
    if settings.kubernetes_queue:
        raise InvalidSettings(
            "kubernetes_pools and kubernetes_queue do not go together: a pod that waits in a pool has its place already.",
            hint="Set one of them.",
        )
    endpoint = settings.kubernetes_endpoint
    if not has_replica_addresses(endpoint) or PORT_IN_ENDPOINT not in endpoint:
        raise InvalidSettings(
            "kubernetes_pools needs a kubernetes_endpoint with {address} or {pod} and the port 8000: each pod is reached by itself.",
            hint="The default is http://{address}:8000.",
        )
    if settings.engine_command:
        raise InvalidSettings(
            "kubernetes_pools and engine_command do not go together: a pool's pod starts the engine's own command.",
            hint="Set one of them.",
        )
    for pool in kept:
        _check_gpu(pool, settings)
    return kept


def _pool(name: str, given: PoolSettings) -> PodPool:
    if not POOL_NAME.fullmatch(name):
        raise InvalidSettings(
            f"{name[:80]!r} is no name of a pool in kubernetes_pools.",
            hint="It has up to 30 small letters, digits and hyphens, and begins with a letter.",
        )
    if bool(given.gpu_type) != bool(given.gpu_count):
        raise InvalidSettings(
            f"The pool {name} in kubernetes_pools needs gpu_type and gpu_count, or neither."
        )
    if given.max_size and not given.size:
        raise InvalidSettings(
            f"The pool {name} in kubernetes_pools has max_size {given.max_size}, but with size 0 no pod waits that could be claimed, and so it never grows.",
            hint="Set its size to 1 or more, or leave max_size out.",
        )
    if given.max_size is not None and given.max_size < given.size:
        raise InvalidSettings(
            f"The pool {name} in kubernetes_pools has max_size {given.max_size}, which is less than its size {given.size}."
        )
    asked = Resources(**given.model_dump(exclude={"size", "max_size"}))
    return PodPool(name, given.size, asked, given.max_size or given.size)


def _check_gpu(pool: PodPool, settings: Settings) -> None:
    nodes, gpu_type = settings.kubernetes_gpu_nodes, pool.resources.gpu_type
    if gpu_type and nodes and gpu_type not in nodes:
        raise InvalidSettings(
            f"The pool {pool.name} asks for {gpu_type} GPUs, which kubernetes_gpu_nodes does not name."
        )


def split_context(text: str, default_namespace: str) -> tuple[str, str]:
    """Split ``context:namespace``, where the namespace may be left out."""
    context, _, namespace = text.rpartition(":") if _names_namespace(text) else (text, "", "")
    return context, namespace or default_namespace


def _names_namespace(text: str) -> bool:
    """Contexts may have colons themselves (EKS names them by ARN): what follows the last one is a namespace if it can be one."""
    _, colon, last = text.rpartition(":")
    return bool(colon) and "/" not in last
