"""Every setting of the platform, in one frozen object that the entrance builds and passes on.

Values come from arguments, then the environment (``GUANACO_*``), then a TOML file named by
``GUANACO_CONFIG``. docs/settings.md lists them; a test holds the two together.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from guanaco_server.chat_settings import ChatSettings
from guanaco_server.feedback_settings import FeedbackSettings
from guanaco_server.gpu_settings import GpuSettings
from guanaco_server.notification_settings import NotificationSettings
from guanaco_server.reward_settings import RewardSettings
from guanaco_server.routing_settings import RoutingSettings
from guanaco_server.scaling_settings import ScalingSettings
from guanaco_server.score_settings import ScoreSettings
from guanaco_server.web_settings import WebSettings

GIB = 1024**3


class Settings(
    GpuSettings,
    ChatSettings,
    RewardSettings,
    RoutingSettings,
    ScalingSettings,
    FeedbackSettings,
    ScoreSettings,
    NotificationSettings,
    WebSettings,
):
    model_config = SettingsConfigDict(env_prefix="GUANACO_", frozen=True, extra="ignore")

    # The platform itself
    host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    port: int = Field(
        default=8300, ge=0, le=65_535, description="Port the API listens on; 0 takes a free one."
    )
    data_dir: Path = Field(
        default=Path("guanaco-data"),
        description="The one folder that holds the database, artifacts, logs and local secrets.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL URL (postgresql://…); SQLite in the data folder otherwise.",
    )
    executor_id: str = Field(
        default="local",
        description="Stable name of this worker; what it left unfinished is its to resume.",
    )
    pipeline_concurrency: int = Field(
        default=2,
        ge=1,
        description="Submissions worked on at once; more only compete for one machine's cores.",
    )
    max_body_bytes: int = Field(
        default=262_144,
        ge=1_024,
        description="Largest request body; a message of 16,384 characters fits four times over.",
    )
    role: Literal["all", "api", "worker"] = Field(
        default="all",
        description="What this process does: api answers requests, worker runs pipeline and reconciler; both need PostgreSQL and a shared artifact store. all does everything, alone.",
    )
    worker_silence_s: float = Field(
        default=30,
        ge=1,
        description="How long a worker may be silent before another takes over its work.",
    )
    migrate_at_start: bool = Field(
        default=True,
        description="Whether a start brings the database's tables up to date; else it waits until `guanaco migrate` has. With role api or worker it always waits.",
    )
    schema_wait_s: float = Field(
        default=300, ge=0, description="Longest wait for a database that is to be migrated."
    )
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log lines for people (text), or for machines (json)."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port on which anybody may scrape metrics; otherwise `/metrics` of the API, with an admin key.",
    )
    pseudonym_key: SecretStr | None = Field(
        default=None,
        description="Key of the user pseudonyms; made and kept in the data folder otherwise. Needed when several machines share a database.",
    )

    # The Hub and what may be submitted
    hub_endpoint: str = Field(
        default="https://huggingface.co", description="Base URL of the Hugging Face Hub."
    )
    hub_token: SecretStr | None = Field(
        default=None, description="Hub token of the platform, for gated repos it was granted."
    )
    hub_timeout_s: float = Field(default=20, gt=0, description="Longest wait for one Hub answer.")
    max_parameters: int = Field(
        default=15_000_000_000, ge=1, description="Largest model, in parameters."
    )
    max_weight_bytes: int = Field(
        default=64 * GIB, ge=1, description="Largest model, in bytes of weights."
    )

    # Serializing
    artifacts_dir: Path | None = Field(
        default=None,
        description="Folder of the artifacts; artifacts/ in the data folder otherwise.",
    )
    artifacts_url: str | None = Field(
        default=None,
        description="Bucket of the artifacts (s3://bucket/folder), for the machines of one database: what that does not need is deleted there. The local folder otherwise.",
    )
    s3_endpoint: str | None = Field(
        default=None, description="URL of the bucket's S3 server; AWS otherwise."
    )
    s3_region: str = Field(default="us-east-1", description="The bucket's region.")
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Where the bucket's name goes: into the path, into the host's name (virtual), or as boto3 sees fit.",
    )
    s3_ca_file: Path | None = Field(
        default=None,
        description="Certificates that vouch for the S3 server; those of the system otherwise.",
    )
    s3_access_key_id: str | None = Field(
        default=None,
        description="Whom the S3 server knows the platform as; what boto3 finds by itself otherwise.",
    )
    s3_secret_access_key: SecretStr | None = Field(
        default=None, description="The secret of that access key."
    )
    serializer_memory_bytes: int = Field(
        default=GIB,
        ge=GIB // 2,
        description="Memory limit of a serializer process, whatever the model's size.",
    )
    serializer_timeout_s: float = Field(
        default=3_600, gt=0, description="Longest a serializer may take."
    )
    artifact_sweep_s: float = Field(
        default=600, gt=0, description="Seconds between two looks for artifacts that nobody needs."
    )
    artifact_grace_s: float = Field(
        default=7 * 86_400,
        ge=3_600,
        description="How long an artifact is kept that no submission needs; a redeploy within this time need not serialize again.",
    )
    staging_grace_s: float = Field(
        default=86_400,
        ge=3_600,
        description="How long what an unfinished serializer job wrote is kept for another to go on with.",
    )

    # Model servers
    engine_python: Path = Field(
        default=Path(sys.executable),
        description="Python of the environment that has vLLM, torch and tensorizer (`make engine` makes .venv-engine).",
    )
    engine_args: list[str] = Field(
        default=[], description="Further vLLM arguments for every model server."
    )
    engine_command: list[str] | None = Field(
        default=None,
        description="Replaces the engine's own command (`ENGINE_PYTHON -m guanaco_server.engine.serve`); for a wrapper, or a scripted server in tests.",
    )
    engine_cache_dir: Path | None = Field(
        default=None,
        description="Folder in which this machine keeps artifacts of a remote store; engine-cache/ in the data folder otherwise.",
    )
    engine_cache_bytes: int = Field(
        default=50 * GIB,
        ge=0,
        description="Size limit of that folder; the least recently used artifacts go. 0 keeps none.",
    )
    engine_ports: tuple[int, int] = Field(
        default=(21_000, 29_999), description="Ports of model servers, first and last."
    )
    ready_timeout_s: float = Field(
        default=600,
        gt=0,
        description="Longest a model server may take to answer; the tiny model takes 40 s on two cores.",
    )
    restart_limit: int = Field(
        default=3,
        ge=0,
        description="Times a published model server is started again before its submission fails.",
    )
    lifeline_grace_s: float = Field(
        default=60,
        ge=0,
        description="How long model servers outlive a platform that was killed, so that a restart finds them.",
    )

    # Where jobs and model servers run
    cluster: Literal["local", "kubernetes"] = Field(
        default="local",
        description="Where jobs and model servers run: as processes of this machine, or in Kubernetes.",
    )
    kubernetes_contexts: list[str] = Field(
        default=["in-cluster"],
        min_length=1,
        description="The clusters: contexts of the kubeconfig (context or context:namespace), or in-cluster for the one that the platform runs in. Several are regions; the first is the near one, where jobs run and the Lease is.",
    )
    kubernetes_weights: dict[str, float] = Field(
        default={},
        description="How much each of several clusters takes, as JSON by its entry in kubernetes_contexts; 1 otherwise, 0 drains it.",
    )
    kubernetes_kubeconfig: Path | None = Field(
        default=None, description="The kubeconfig; KUBECONFIG or ~/.kube/config otherwise."
    )
    kubernetes_namespace: str = Field(
        default="guanaco",
        description="Namespace of jobs and model servers, where the context names none.",
    )
    kubernetes_platform_namespace: str | None = Field(
        default=None,
        description="Namespace of the platform's pods (app.kubernetes.io/name: guanaco), which alone may reach model servers; the same one otherwise.",
    )
    engine_image: str | None = Field(
        default=None, description="Image of model servers; needed with Kubernetes."
    )
    serializer_image: str | None = Field(
        default=None, description="Image of serializer jobs; needed with Kubernetes."
    )
    kubernetes_python: str = Field(
        default="python", description="Python within those images, in place of engine_python."
    )
    kubernetes_priority_class: str | None = Field(
        default=None, description="Priority class of the pods; the cluster's default otherwise."
    )
    kubernetes_gpu_nodes: dict[str, dict[str, str]] = Field(
        default={},
        description="Node labels of each kind of GPU, as JSON; a kind that is not named is refused. None named: any GPU will do.",
    )
    kubernetes_engine_egress: list[str] = Field(
        default=[],
        description="Where model servers may connect to beside DNS (10.0.0.0/8:443): the artifact store; needed with Kubernetes.",
    )
    kubernetes_serializer_egress: list[str] = Field(
        default=["0.0.0.0/0:443"],
        description="Where serializer jobs may connect to beside DNS: the artifact store and the Hub.",
    )
    kubernetes_endpoint: str = Field(
        default="http://{address}:8000",
        description="How the platform reaches a replica, by its pod's {address} or name ({pod}); {context} tells several clusters apart. With neither, one address stands for all replicas of a submission: http://{name}.{namespace}.svc:8000 is its Service's, which is made then only.",
    )
    kubernetes_pending_s: float = Field(
        default=300,
        gt=0,
        description="How long a pod may wait for a machine; autoscalers take minutes.",
    )
    kubernetes_patience_s: float = Field(
        default=60,
        ge=0,
        description="How long a call is tried again that the Kubernetes API does not answer.",
    )

    quantization_max_perplexity_ratio: float = Field(
        default=1.1,
        ge=1,
        description="Perplexity of a quantized model on a fixed text, in times of the unquantized one's, over which it is refused.",
    )

    # The stress check
    stress_duration_s: float = Field(
        default=6, gt=0, description="Seconds during which requests are started."
    )
    stress_rate: float = Field(
        default=2, gt=0, description="Requests a second, started whether or not earlier ones ended."
    )
    stress_max_ttft_p95_ms: float = Field(
        default=5_000, gt=0, description="Slowest allowed 95th percentile of time to first token."
    )
    stress_max_tpot_p95_ms: float = Field(
        default=500, gt=0, description="Slowest allowed 95th percentile of time per output token."
    )
    stress_max_e2e_p95_ms: float = Field(
        default=20_000, gt=0, description="Slowest allowed 95th percentile of a whole reply."
    )
    stress_max_error_rate: float = Field(
        default=0.0, ge=0, le=1, description="Share of requests that may fail."
    )
    stress_request_timeout_s: float = Field(
        default=30, gt=0, description="A request that takes longer counts as failed."
    )

    @property
    def does_migrate(self) -> bool:
        return self.migrate_at_start and self.role == "all"

    @property
    def secrets(self) -> list[str]:
        """Every secret's value, for whoever must not write one down."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]

    @property
    def artifacts_path(self) -> Path:
        return self.artifacts_dir or self.data_dir / "artifacts"

    @property
    def engine_cache_path(self) -> Path:
        return self.engine_cache_dir or self.data_dir / "engine-cache"

    @property
    def sqlalchemy_url(self) -> str:
        """The async URL of the platform's database."""
        if self.database_url is None:
            return f"sqlite+aiosqlite:///{self.data_dir.absolute() / 'guanaco.db'}"
        return _postgresql_url(self.database_url.get_secret_value())

    @property
    def workflow_database_url(self) -> str:
        """Where the durable pipeline keeps its progress: a file of its own, or schema ``dbos`` of the same PostgreSQL."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir.absolute() / 'workflows.db'}"
        return _postgresql_url(self.database_url.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if config := os.environ.get("GUANACO_CONFIG"):
            sources.append(TomlConfigSettingsSource(settings_cls, Path(config)))
        return tuple(sources)


def _postgresql_url(url: str) -> str:
    _, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}"
