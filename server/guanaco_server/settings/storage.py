"""Settings of what is read and kept: the Hub, the limits of a submission, the artifact store and the serializer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr

GIB = 1024**3


class StorageSettings(BaseModel):
    """The Hub and the artifact store"""

    hub_endpoint: str = Field(
        default="https://huggingface.co", description="Base URL of the Hugging Face Hub."
    )
    hub_token: SecretStr | None = Field(
        default=None,
        description="Hub token of the platform, for its rate limit at the Hub. It opens no private or gated repo to developers: they give their own with a submission.",
    )
    max_parameters: int = Field(
        default=15_000_000_000, ge=1, description="Largest model, in parameters."
    )
    max_weight_bytes: int = Field(
        default=64 * GIB, ge=1, description="Largest model, in bytes of weights."
    )
    quota_per_hour: int = Field(
        default=30,
        ge=0,
        description="Submissions and redeploys of one developer within an hour. 0 is no limit, here and below; an admin may set another for a developer, and has none.",
    )
    quota_live: int = Field(
        default=20,
        ge=0,
        description="Submissions of one developer that are live, inactive or on their way; of a sweep, the model servers that its variants need.",
    )
    quota_in_progress: int = Field(
        default=10, ge=0, description="Submissions of one developer in the queue and the pipeline."
    )
    quota_artifact_bytes: int = Field(
        default=512 * GIB,
        ge=0,
        description="Bytes of weights of one developer's live submissions; models that several of them share count once. Artifacts of ended ones leave when these need their room.",
    )
    kept_answers_bytes: int = Field(
        default=GIB // 4,
        ge=0,
        description="Bytes of one account's answers that are kept for a day for its Idempotency-Keys; beyond, its oldest are forgotten sooner. 0 is no limit.",
    )
    artifacts_dir: Path | None = Field(
        default=None,
        description="Folder of the artifacts. Default: artifacts/ in the data folder.",
    )
    artifacts_url: str | None = Field(
        default=None,
        description="Bucket of the artifacts (s3://bucket/folder), shared by the machines of one database; the platform deletes there what its database does not need. Default: the local folder.",
    )
    s3_endpoint: str | None = Field(
        default=None, description="URL of the bucket's S3 server. Default: AWS."
    )
    s3_region: str = Field(default="us-east-1", description="The bucket's region.")
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Where the bucket's name goes: into the path, into the host's name (virtual), or as boto3 chooses (auto).",
    )
    s3_ca_file: Path | None = Field(
        default=None,
        description="File of the certificates that vouch for the S3 server. Default: those of the system.",
    )
    s3_access_key_id: str | None = Field(
        default=None,
        description="Access key id for the S3 server. Default: what boto3 finds by itself.",
    )
    s3_secret_access_key: SecretStr | None = Field(
        default=None, description="The secret of that access key."
    )
    backup_dir: Path | None = Field(
        default=None,
        description="Folder of the backups, on another disk than the database. Default: backups/ in the data folder.",
    )
    backup_wal_dir: Path | None = Field(
        default=None,
        description="Folder that PostgreSQL archives its WAL to. With it backups are base backups, which can be restored to any moment; without it they are dumps.",
    )
    serializer_memory_bytes: int = Field(
        default=GIB,
        ge=GIB // 2,
        description="Memory limit of a serializer process, whatever the model's size.",
    )
    serializer_timeout_s: float = Field(
        default=3_600, gt=0, description="Longest a serializer may take."
    )
