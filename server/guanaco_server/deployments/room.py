"""Builds the deployments room: the wish for model servers, and the reconciler that makes it true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.compute import Compute
from guanaco_server.database.database import Database
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.engines.spares import KeptServers
from guanaco_server.deployments.engines.specs import AdapterLimits, EngineOptions
from guanaco_server.deployments.engines.swaps import IdleServers, SwapShapes
from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.deployments.overview import DeploymentOverview
from guanaco_server.deployments.reconciling.engine_reconciler import GiveUp
from guanaco_server.deployments.reconciling.reconciler import Reconciler
from guanaco_server.deployments.reconciling.sleeping import SleepingServers
from guanaco_server.deployments.service import DeploymentService, HasOlderGateway
from guanaco_server.deployments.takeover import Takeover
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class DeploymentsRoom:
    service: DeploymentService
    versions: VersionsBeside
    overview: DeploymentOverview
    idle: IdleServers
    sleeping: SleepingServers
    takeover: Takeover


def build_deployments(
    database: Database,
    clock: Clock,
    compute: Compute,
    model_server: ModelServer,
    store: ArtifactStore,
    *,
    configs: ArtifactConfigs,
    has_older_gateway: HasOlderGateway,
    settings: Settings,
) -> DeploymentsRoom:
    default_command = [compute.python, "-m", "guanaco_server.engine.serve"]
    engine = EngineOptions(
        command=tuple(settings.engine_command or default_command),
        args=tuple(settings.engine_args),
        cache_dir=compute.cache_dir,
        cache_bytes=settings.engine_cache_bytes,
        recipes=settings.recipe_policy,
        adapters=AdapterLimits(settings.lora_max_rank, settings.lora_at_once, settings.lora_kept),
    )
    is_budgeted = bool(settings.max_gpus or settings.max_model_servers)
    service = DeploymentService(
        database,
        clock,
        compute.cluster,
        model_server,
        store,
        configs,
        engine,
        has_older_gateway,
        is_budgeted,
        KeptServers(
            settings.hot_engine_limit > 0,
            settings.hot_engine_memory_s if settings.hot_engine_requests else 0,
        ),
    )
    idle = IdleServers(compute.cluster, SwapShapes(store, configs, engine))
    return DeploymentsRoom(
        service,
        VersionsBeside(database, clock, model_server, service),
        DeploymentOverview(database, model_server),
        idle,
        SleepingServers(
            compute.cluster,
            service,
            idle,
            settings.sleep_memory_bytes,
            compute.has_memory,
        ),
        Takeover(service, idle),
    )


def build_reconciler(
    database: Database,
    clock: Clock,
    compute: Compute,
    *,
    deployments: DeploymentService,
    sleeping: SleepingServers,
    admit: Callable[[], Awaitable[frozenset[str]]],
    start_ahead: Callable[[], Awaitable[None]],
    give_up: GiveUp,
    settings: Settings,
) -> Reconciler:
    """Return the loop that keeps model servers as they are requested; ``admit`` gives
    room to deployments that wait for it and returns the servers that are to stop, ``start_ahead`` starts one before it is asked for, ``give_up`` is called for a server that keeps dying."""
    return Reconciler(
        deployments,
        sleeping,
        compute.cluster,
        clock,
        give_up,
        restart_limit=settings.restart_limit,
        ready_timeout_s=settings.ready_timeout_s,
        admit=admit,
        start_ahead=start_ahead,
        is_leader=compute.leadership.is_leading,
        regions=compute.regions,
        commits=database.watch_commits(deployments.woken),
    )
