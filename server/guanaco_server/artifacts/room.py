"""Builds the artifacts room: serialized models, made once and collected when nobody needs them."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.collector import ArtifactCollector, GracePeriods, NeededKeys
from guanaco_server.artifacts.service import ArtifactService, Exclusive, SerializerOptions
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.compute import Compute
from guanaco_server.database.database import Database
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class ArtifactsRoom:
    """``collector`` is a loop, the duty of one process."""

    configs: ArtifactConfigs
    service: ArtifactService
    collector: ArtifactCollector


def build_artifacts(
    database: Database,
    clock: Clock,
    store: ArtifactStore,
    compute: Compute,
    *,
    configs: ArtifactConfigs,
    needed_keys: NeededKeys,
    exclusive: Exclusive,
    metrics: Metrics,
    settings: Settings,
) -> ArtifactsRoom:
    """``needed_keys`` names the artifacts in use; ``exclusive`` keeps other processes from making the same one."""
    collector = ArtifactCollector(
        database,
        clock,
        store,
        needed_keys,
        GracePeriods(),
    )
    options = SerializerOptions(
        command=(compute.python, "-m", "guanaco_server.serializer.job"),
        hub_endpoint=settings.hub_endpoint,
        memory_bytes=settings.serializer_memory_bytes,
        timeout_s=settings.serializer_timeout_s,
    )
    service = ArtifactService(store, collector, compute.cluster, options, exclusive, metrics)
    return ArtifactsRoom(configs, service, collector)
