"""Settings of one platform process: its address, its role, its database and its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class ProcessSettings(BaseModel):
    """The process"""

    host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    port: int = Field(
        default=8300, ge=0, le=65_535, description="Port the API listens on; 0 takes a free one."
    )
    gateways: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes of this machine that answer requests on one port; more than one needs PostgreSQL.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Let other processes listen on the same port (SO_REUSEPORT), as several gateways do.",
    )
    max_connections: int | None = Field(
        default=None,
        ge=16,
        description="Connections that a process holds at once; with more, idle ones are closed and new ones get 503. Default: half of its limit of open files, at most 16,384.",
    )
    max_connections_per_address: int | None = Field(
        default=None,
        ge=1,
        description="Connections from one address at once, or requests that a trusted proxy passes on for one; addresses of trusted proxies have no limit. Default: a quarter of the connections.",
    )
    role: Literal["all", "api", "worker"] = Field(
        default="all",
        description="Role of this process: api answers requests, worker runs the pipeline and the reconciler; both need PostgreSQL and a shared artifact store. all does everything in one process.",
    )
    require_confinement: bool = Field(
        default=False,
        description="Refuse to start on a machine where a layer of the confinement of strangers' files is not in force; `guanaco doctor` lists them. Otherwise it starts, and logs which are missing.",
    )
    data_dir: Path = Field(
        default=Path("guanaco-data"),
        description="The one folder that holds the database, artifacts, logs and local secrets.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL URL (postgresql://…). Default: SQLite in the data folder.",
    )
    database_replica_url: SecretStr | None = Field(
        default=None,
        description="URL of a read replica of the PostgreSQL. Leaderboards, score histories and developers' feedback are read there while it is at most 5 s behind, else from the primary.",
    )
    migrate_at_start: bool = Field(
        default=True,
        description="Migrate the database at the start; otherwise, the start waits for `guanaco migrate`. A process with the role api or worker always waits.",
    )
    executor_id: str = Field(
        default="local",
        description="Stable name of this worker. After a restart, it resumes the work that it left under this name.",
    )
    worker_silence_s: float = Field(
        default=30,
        ge=1,
        description="How long a worker may be silent before another takes over its work.",
    )
    pipeline_concurrency: int = Field(
        default=2,
        ge=1,
        description="Submissions worked on at once. On one machine more than 2 compete for the same cores.",
    )
    log_level: Annotated[LogLevel, BeforeValidator(_upper)] = Field(
        default="INFO",
        description="DEBUG, INFO, WARNING, ERROR or CRITICAL, in upper or lower case.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log lines for people (text), or for machines (json)."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port on which anybody may scrape metrics. Default: `/metrics` of the API, with an admin key.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="OTLP receiver that traces are sent to over HTTP, such as http://collector:4318. Default: no traces.",
    )
    otlp_authorization: SecretStr | None = Field(
        default=None, description="Value of the Authorization header that the OTLP receiver wants."
    )
    trace_sample_ratio: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of requests whose trace is sent; for one with a traceparent the app has decided.",
    )
    pseudonym_key: SecretStr | None = Field(
        default=None,
        description="Key of the user pseudonyms; required when several machines share a database. Default: made and kept in the data folder.",
    )

    @field_validator("database_url", "database_replica_url")
    @classmethod
    def _is_postgresql(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _check_database_url(url.get_secret_value())
        return url

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is not None:
            _check_http_url(url)
        return url

    @property
    def does_migrate(self) -> bool:
        return self.migrate_at_start and self.role == "all"

    @property
    def sqlalchemy_url(self) -> str:
        """The async URL of the platform's database."""
        if self.database_url is None:
            return f"sqlite+aiosqlite:///{self.data_dir.absolute() / 'guanaco.db'}"
        return _with_driver(self.database_url.get_secret_value())

    @property
    def sqlalchemy_replica_url(self) -> str | None:
        url = self.database_replica_url
        return None if url is None else _with_driver(url.get_secret_value())

    @property
    def workflow_database_url(self) -> str:
        """The URL under which the pipeline keeps its progress: a file of its own, or schema ``dbos`` of the same PostgreSQL."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir.absolute() / 'workflows.db'}"
        return _with_driver(self.database_url.get_secret_value())


def _check_database_url(url: str) -> None:
    """Raise ValueError for anything but a PostgreSQL URL. The message never repeats the URL: it may hold a password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    form = "Write postgresql://user:password@host/database, or leave it out for SQLite in the data folder"
    kind, separator, _ = url.partition("://")
    if not separator or not kind:
        raise ValueError(f"It is not a URL. {form}")
    if kind.partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError(f"A database of the kind {kind[:40]!r} is not supported. {form}")
    try:
        make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"It cannot be read as a URL. {form}") from None


def _check_http_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError("It is not the URL of an OTLP receiver. Write http://host:4318")
    if parts.username or parts.password:
        raise ValueError("A URL with a password is logged: use otlp_authorization")


def _with_driver(url: str) -> str:
    _, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}"
