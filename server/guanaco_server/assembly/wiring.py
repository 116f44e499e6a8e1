"""From the settings to the adapters that they choose and the options of each part; the other half of platform.py."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path

from guanaco.feedback import Erasure, ErasureRequest
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.artifacts.service import SerializerOptions
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import S3Config, split_url
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.artifacts.verification import ArtifactVerifier
from guanaco_server.chat.conversations.service import ConversationService, Spans
from guanaco_server.chat.gateway.best_of import BestOf, RewardModels
from guanaco_server.chat.gateway.generation import Deadlines, ReplyGenerator
from guanaco_server.chat.gateway.turn_log import TurnLog, TurnStatements
from guanaco_server.chat.gateway.turn_statements import PostgresqlTurns, SqliteTurns
from guanaco_server.clusters.cluster import Cluster
from guanaco_server.clusters.federation import Federation, Region
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.lease import LeaseLeadership
from guanaco_server.clusters.kubernetes.manifests import CACHE
from guanaco_server.clusters.kubernetes.options import connected, has_replica_addresses
from guanaco_server.clusters.leadership import AlwaysLeading, Leadership
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.placement import RegionShare
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_server import ModelServer
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.specs import EngineOptions
from guanaco_server.experiments.service import Outcomes
from guanaco_server.feedback.erasure import ErasureService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.scores import Scores
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.replicas import ReplicaChooser
from guanaco_server.runtime.clock import Clock
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.scaling.autoscaler import ScalingPolicy
from guanaco_server.scaling.budget import Budget
from guanaco_server.scaling.replicas import ReplicaLimits
from guanaco_server.settings import Settings
from guanaco_server.stress.load import LoadProfile
from guanaco_server.stress.verdict import Thresholds
from guanaco_server.web.hooks import WebHooks

MIN_URL_LIFETIME_S = 3_600  # beyond the longest job: also what a model server may take to read


def artifact_verifier(settings: Settings) -> ArtifactVerifier:
    """For the operator's command, without a platform."""
    return ArtifactVerifier(store(settings), hub(settings), settings.hub_endpoint)


def hub(settings: Settings) -> HuggingFaceHub:
    token = settings.hub_token.get_secret_value() if settings.hub_token else None
    return HuggingFaceHub(settings.hub_endpoint, token, settings.hub_timeout_s)


def reply_generator(
    settings: Settings,
    model_server: ModelServer,
    prompts: PromptService,
    deployments: DeploymentService,
    rewards: RewardModels,
    metrics: Metrics,
) -> ReplyGenerator:
    report_fault = deployments.report_fault
    return ReplyGenerator(
        model_server,
        prompts,
        ReplicaChooser(
            settings.replica_max_streams, longest_queue_s=settings.first_token_timeout_s / 2
        ),
        Deadlines(settings.first_token_timeout_s, settings.reply_timeout_s, settings.failover_s),
        deployments.replicas,
        report_fault,
        metrics,
        BestOf(model_server, prompts, rewards, report_fault, metrics, settings.reward_timeout_s),
    )


def turn_log(settings: Settings, database: Database, clock: Clock) -> TurnLog:
    if settings.database_url is None:
        statements: TurnStatements = SqliteTurns(database)
    else:
        statements = PostgresqlTurns(database)
    longest_s = settings.wake_wait_s + settings.reply_timeout_s + settings.record_patience_s
    return TurnLog(statements, clock, settings.record_patience_s, longest_s)


def conversation_spans(settings: Settings) -> Spans:
    return Spans(
        timedelta(seconds=settings.conversation_open_s),
        timedelta(days=settings.assignment_snapshot_days),
    )


def outcomes(feedback: FeedbackService, conversations: ConversationService) -> Outcomes:
    """What experiments are judged by."""
    return Outcomes(feedback.votes_of, conversations.mean_lengths, conversations.mean_reply_ms)


def web_hooks(audit: AuditLog, erasures: ErasureService, scores: Scores) -> WebHooks:
    """What the pages may do beyond reading."""

    def erase(acting: Account, user_id: str, backend: str | None) -> Awaitable[Erasure]:
        return erasures.erase(acting, ErasureRequest(user_id=user_id, account=backend))

    def freeze(acting: Account, competition_id: str) -> Awaitable[object]:
        return scores.seasons.freeze(competition_id, acting)

    return WebHooks(erase, erasures.on_erase, audit.list, freeze)


def store(settings: Settings) -> ArtifactStore:
    if settings.artifacts_url is None:
        return LocalStore(settings.artifacts_path.absolute())
    bucket, prefix = split_url(settings.artifacts_url)
    secret = settings.s3_secret_access_key
    return S3Store(
        S3Config(
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
    )


def cluster(
    settings: Settings, data_dir: DataDir, model_server: ModelServer
) -> tuple[Cluster, Leadership]:
    """The cluster, and who of the platforms that share it may act on it."""
    if settings.cluster == "kubernetes":
        return _kubernetes(settings, model_server)
    local = LocalCluster(
        data_dir.cluster_path,
        data_dir.lock_path,
        settings.lifeline_grace_s,
        settings.engine_ports,
        drain_s=settings.reply_timeout_s,
    )
    return local, AlwaysLeading()


def regions(settings: Settings) -> frozenset[str]:
    """Their names, where there are several."""
    several = settings.cluster == "kubernetes" and len(settings.kubernetes_contexts) > 1
    return frozenset(settings.kubernetes_contexts if several else ())


def _kubernetes(settings: Settings, model_server: ModelServer) -> tuple[Cluster, Leadership]:
    connections = {name: connected(settings, name) for name in settings.kubernetes_contexts}
    clusters = {name: KubernetesCluster(*connection) for name, connection in connections.items()}
    near = settings.kubernetes_contexts[0]
    leadership = LeaseLeadership(
        connections[near][0], f"{settings.executor_id}-{secrets.token_hex(4)}"
    )
    if len(clusters) == 1:
        return clusters[near], leadership
    shares = {
        name: RegionShare(weight=settings.kubernetes_weights.get(name, 1.0)) for name in clusters
    }
    federated = {name: Region(clusters[name], shares[name]) for name in clusters}
    return Federation(federated, model_server.is_healthy, near), leadership


def python(settings: Settings) -> str:
    if settings.cluster == "kubernetes":
        return settings.kubernetes_python
    return str(settings.engine_python)


def engine(settings: Settings) -> EngineOptions:
    command = settings.engine_command or [python(settings), "-m", "guanaco_server.engine.serve"]
    in_pods = settings.cluster == "kubernetes"
    return EngineOptions(
        command=tuple(command),
        args=tuple(settings.engine_args),
        cache_dir=Path(CACHE) if in_pods else settings.engine_cache_path.absolute(),
        cache_bytes=settings.engine_cache_bytes,
        recipes=settings.recipe_policy,
    )


def scaling(settings: Settings) -> ScalingPolicy:
    return ScalingPolicy(
        limits=ReplicaLimits(
            min_replicas=settings.min_replicas,
            max_replicas=max(settings.min_replicas, settings.max_replicas),
            target=settings.scale_target,
            down_window_s=settings.scale_down_window_s,
        ),
        budget=Budget(settings.max_gpus, settings.max_model_servers, settings.preempt_quiet_s),
        feedback_target=settings.feedback_target,
        idle_s=settings.sleep_idle_s,
        interval_s=settings.scale_interval_s,
        engine_args=tuple(settings.engine_args),
        shares_addresses=settings.cluster == "kubernetes"
        and not has_replica_addresses(settings.kubernetes_endpoint),
    )


def serializer(settings: Settings) -> SerializerOptions:
    token = settings.hub_token
    return SerializerOptions(
        command=(python(settings), "-m", "guanaco_server.serializer.job"),
        hub_endpoint=settings.hub_endpoint,
        memory_bytes=settings.serializer_memory_bytes,
        timeout_s=settings.serializer_timeout_s,
        secrets={"HF_TOKEN": token.get_secret_value()} if token else {},
    )


def load_profile(settings: Settings) -> LoadProfile:
    return LoadProfile(
        rate=settings.stress_rate,
        duration_s=settings.stress_duration_s,
        request_timeout_s=settings.stress_request_timeout_s,
    )


def thresholds(settings: Settings) -> Thresholds:
    return Thresholds(
        max_ttft_p95_ms=settings.stress_max_ttft_p95_ms,
        max_tpot_p95_ms=settings.stress_max_tpot_p95_ms,
        max_e2e_p95_ms=settings.stress_max_e2e_p95_ms,
        max_error_rate=settings.stress_max_error_rate,
    )


def pseudonym_key(settings: Settings, data_dir: DataDir) -> bytes:
    if settings.pseudonym_key is not None:
        return settings.pseudonym_key.get_secret_value().encode()
    return data_dir.pseudonym_key()
