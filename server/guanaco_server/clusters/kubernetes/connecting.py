"""From the settings to a connection. The official client is imported here, and late."""

from __future__ import annotations

from typing import Any

from guanaco.errors import InvalidSettings
from guanaco_server.clusters.cluster import Resources
from guanaco_server.clusters.kubernetes.api import KubernetesApi
from guanaco_server.clusters.kubernetes.options import Egress, KubernetesOptions
from guanaco_server.settings import Settings

IN_CLUSTER = "in-cluster"
CONNECTIONS = 32
JOB_ROOM_BYTES = 512 * 1024**2  # beside what the serializer counts: its code, and files in memory


def connected(settings: Settings, region: str) -> tuple[KubernetesApi, KubernetesOptions]:
    """One of the contexts of the settings. InvalidSettings where one is missing without which nothing can run in pods."""
    if settings.artifacts_url is None:
        raise InvalidSettings(
            "Pods share no folder: with Kubernetes, artifacts are kept in a bucket.",
            hint="Set artifacts_url.",
        )
    for name in ("engine_image", "serializer_image", "kubernetes_engine_egress"):
        if not getattr(settings, name):
            raise InvalidSettings(f"With Kubernetes, {name} has to be set.")
    context, namespace = split_context(region, settings.kubernetes_namespace)
    kubeconfig = settings.kubernetes_kubeconfig
    client = connect(context, str(kubeconfig) if kubeconfig else None)
    api = KubernetesApi(client, namespace, patience_s=settings.kubernetes_patience_s)
    return api, options_of(settings, namespace, context)


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
    )


def split_context(text: str, default_namespace: str) -> tuple[str, str]:
    """Context and namespace of ``context:namespace``, where the namespace may be left out."""
    context, _, namespace = text.rpartition(":") if _names_namespace(text) else (text, "", "")
    return context, namespace or default_namespace


def connect(context: str, kubeconfig: str | None = None) -> Any:
    """An ApiClient for a context of the kubeconfig, or for the cluster that this runs in. InvalidSettings if there is none."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError:
        raise InvalidSettings(
            "The cluster is kubernetes, but its client is not installed.",
            hint="`pip install 'guanaco[server,kubernetes]'`",
        ) from None
    settings = client.Configuration()
    try:
        if context == IN_CLUSTER:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context or None, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise InvalidSettings(
            f"There is no Kubernetes context {context or 'of that kubeconfig'} to use: {str(error).rstrip('.')}."
        ) from None
    settings.connection_pool_maxsize = CONNECTIONS
    return client.ApiClient(settings)


def _names_namespace(text: str) -> bool:
    """Contexts may have colons themselves (EKS names them by ARN): what follows the last one is a namespace if it can be one."""
    _, colon, last = text.rpartition(":")
    return bool(colon) and "/" not in last
