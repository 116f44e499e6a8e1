"""The adapters of every port, chosen by the settings. This module alone names their concrete classes.

settings → adapters → rooms (rooms.py) → platform (platform.py) → HTTP (app.py)

Adapters that a platform on one machine may never use are imported where they are made: together they take 20 MB.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guanaco import __version__
from guanaco.errors import InvalidSettings
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.artifacts.hub.late import LateHub
from guanaco_server.artifacts.stores.kept_files import KeptFiles
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster
from guanaco_server.clusters.compute import Compute
from guanaco_server.clusters.federation import Federation, Region
from guanaco_server.clusters.leadership import AlwaysLeading
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.local.fork_server import has_memory_left
from guanaco_server.clusters.placement import RegionShare
from guanaco_server.confinement import confined
from guanaco_server.confinement.confined import StartChild
from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.feedback.erasures.ledger import ErasureLedger, LocalLedger
from guanaco_server.observability.tracing import NoTracing, Tracing
from guanaco_server.runtime.clock import Clock, SystemClock
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.settings import Settings

if TYPE_CHECKING:
    from guanaco_server.artifacts.stores.s3_client import S3Config
    from guanaco_server.artifacts.verification import ArtifactVerifier
    from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster

MIN_URL_LIFETIME_S = 3_600  # beyond the longest job: also what a model server may take to read


@dataclass(frozen=True)
class Adapters:
    """Everything outside the platform's own process, one adapter for each port."""

    clock: Clock
    hub: Hub
    store: ArtifactStore
    ledger: ErasureLedger
    compute: Compute
    model_server: ModelServer
    tracing: Tracing
    start_child: StartChild


def build_adapters(settings: Settings, data_dir: DataDir) -> Adapters:
    model_server = VllmServer(answer_timeout_s=settings.reply_timeout_s)
    return Adapters(
        clock=SystemClock(),
        hub=_hub(settings),
        store=_store(settings, _kept_files(settings)),
        ledger=build_ledger(settings),
        compute=_compute(settings, data_dir, model_server),
        model_server=model_server,
        tracing=build_tracing(settings),
        start_child=confined.start,
    )


def build_tracing(settings: Settings) -> Tracing:
    """InvalidSettings where the packages that send traces are not installed."""
    if settings.otlp_endpoint is None:
        return NoTracing()
    try:  # here, for importing the SDK takes 0.2 s
        from guanaco_server.observability.otlp import OtlpTracing
    except ModuleNotFoundError:
        raise InvalidSettings(
            "otlp_endpoint is set, and the packages that send traces are not installed.",
            hint='`pip install "guanaco-platform[tracing]"` installs them.',
        ) from None
    secret = settings.otlp_authorization
    return OtlpTracing(
        settings.otlp_endpoint,
        settings.trace_sample_ratio,
        authorization=secret.get_secret_value() if secret else None,
        version=__version__,
        role=settings.role,
    )


def build_verifier(settings: Settings) -> ArtifactVerifier:
    """Return the artifact verifier of the operator's command, which works without a platform."""
    from guanaco_server.artifacts.verification import ArtifactVerifier

    token = settings.hub_token.get_secret_value() if settings.hub_token else None
    hub = _hub(settings).with_token(token)  # the operator's own: the command runs for nobody else
    return ArtifactVerifier(_store(settings, kept=None), hub, settings.hub_endpoint)


def build_ledger(settings: Settings) -> ErasureLedger:
    """The erasure ledger is where the artifacts are, which all processes share, and which is no part of the database."""
    if settings.artifacts_url is None:
        return LocalLedger(settings.artifacts_path.absolute() / ".erasures")
    from guanaco_server.feedback.erasures.s3_ledger import S3Ledger

    return S3Ledger(_bucket(settings, settings.artifacts_url))


def check_store(settings: Settings) -> None:
    """StoreUnreachable or InvalidSettings, with what is wrong with the artifact store of a platform that need not run."""
    asyncio.run(_store(settings, kept=None).check())


def _hub(settings: Settings) -> Hub:
    token = settings.hub_token.get_secret_value() if settings.hub_token else None

    def make() -> Hub:
        from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub

        return HuggingFaceHub(settings.hub_endpoint, token)

    return LateHub(make)


def _kept_files(settings: Settings) -> KeptFiles:
    return KeptFiles(
        settings.data_dir.absolute() / "small-files", settings.engine_cache_path.absolute()
    )


def _store(settings: Settings, kept: KeptFiles | None) -> ArtifactStore:
    if settings.artifacts_url is None:
        return LocalStore(settings.artifacts_path.absolute())
    from guanaco_server.artifacts.stores.s3 import S3Store

    return S3Store(_bucket(settings, settings.artifacts_url), kept)


def _bucket(settings: Settings, url: str) -> S3Config:
    from guanaco_server.artifacts.stores.s3_client import S3Config, split_url

    bucket, prefix = split_url(url)
    secret = settings.s3_secret_access_key
    return S3Config(
        bucket=bucket,
        prefix=prefix,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        addressing=settings.s3_addressing,
        ca_file=str(settings.s3_ca_file) if settings.s3_ca_file else None,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=secret.get_secret_value() if secret else None,
        url_lifetime_s=int(settings.serializer_timeout_s) + MIN_URL_LIFETIME_S,
    )


def _compute(settings: Settings, data_dir: DataDir, model_server: ModelServer) -> Compute:
    if settings.cluster == "kubernetes":
        return _kubernetes_compute(settings, model_server)
    cluster = LocalCluster(
        data_dir.cluster_path,
        data_dir.lock_path,
        settings.lifeline_grace_s,
        settings.engine_ports,
        drain_s=settings.reply_timeout_s,
        server_memory_bytes=settings.engine_memory_bytes,
        engine_python=settings.engine_python,
        has_fork_server=settings.engine_nursery and not settings.engine_command,
    )
    return Compute(
        cluster=cluster,
        leadership=AlwaysLeading(),
        python=str(settings.engine_python),
        cache_dir=settings.engine_cache_path.absolute(),
        regions=frozenset(),
        shares_addresses=False,
        has_memory=has_memory_left,
    )


def _kubernetes_compute(settings: Settings, model_server: ModelServer) -> Compute:
    from guanaco_server.clusters.kubernetes.api.lease import LeaseLeadership
    from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
    from guanaco_server.clusters.kubernetes.manifests.pods import CACHE
    from guanaco_server.clusters.kubernetes.options import connected, has_replica_addresses

    connections = {name: connected(settings, name) for name in settings.kubernetes_contexts}
    clusters = {name: KubernetesCluster(*connection) for name, connection in connections.items()}
    near = settings.kubernetes_contexts[0]
    holder = settings.executor_id
    if (
        settings.role != "worker"
    ):  # workers' names are their own; others' may be a default that several have
        holder = f"{holder}-{secrets.token_hex(4)}"
    return Compute(
        cluster=_one_cluster(settings, clusters, near, model_server),
        leadership=LeaseLeadership(connections[near][0].with_own_threads(), holder),
        python=settings.kubernetes_python,
        cache_dir=Path(CACHE),
        regions=frozenset(clusters) if len(clusters) > 1 else frozenset(),
        shares_addresses=not has_replica_addresses(settings.kubernetes_endpoint),
        has_memory=lambda _: True,  # each pod has memory of its own
    )


def _one_cluster(
    settings: Settings, clusters: dict[str, KubernetesCluster], near: str, model_server: ModelServer
) -> Cluster:
    if len(clusters) == 1:
        return clusters[near]
    regions = {
        name: Region(cluster, RegionShare(weight=settings.kubernetes_weights.get(name, 1.0)))
        for name, cluster in clusters.items()
    }
    return Federation(regions, model_server.is_healthy, near)
