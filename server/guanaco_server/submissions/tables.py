"""Submissions, the runs of their stages, their events and stress reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.contract import unknown_members
from guanaco.prompts import Prompt
from guanaco.recipes import RecipeOverride
from guanaco.submissions import (
    EventKind,
    Failure,
    GenerationParams,
    Level,
    Outcome,
    Quantization,
    RolloutPhase,
    Stage,
    Status,
    StressReport,
    Submission,
    SubmissionKind,
    WeightDtype,
)
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, JsonColumn, Pydantic, UtcDateTime
from guanaco_server.deployments.versions import ServedVersion, beside


class SubmissionRow(Table):
    __tablename__ = "submissions"
    __table_args__ = (
        UniqueConstraint("account_id", "idempotency_key"),
        Index("ix_submissions_account_id_created_at", "account_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    developer: Mapped[str] = mapped_column(String(64))
    kind: Mapped[SubmissionKind] = mapped_column(
        EnumText(SubmissionKind), default=SubmissionKind.CHAT
    )
    repo: Mapped[str] = mapped_column(String(193))
    revision: Mapped[str | None] = mapped_column(String(128))
    commit: Mapped[str | None] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(193))
    status: Mapped[Status] = mapped_column(EnumText(Status), index=True)
    failure: Mapped[Failure | None] = mapped_column(Pydantic(Failure))
    params: Mapped[GenerationParams] = mapped_column(Pydantic(GenerationParams))
    formatter: Mapped[Prompt] = mapped_column(Pydantic(Prompt))
    prompt: Mapped[str | None] = mapped_column(String(129))
    prompt_version: Mapped[int | None]
    dtype: Mapped[WeightDtype] = mapped_column(EnumText(WeightDtype), default=WeightDtype.AUTO)
    quantization: Mapped[Quantization | None] = mapped_column(EnumText(Quantization))
    reward: Mapped[str | None] = mapped_column(String(128), index=True)
    reward_formatter: Mapped[Prompt | None] = mapped_column(Pydantic(Prompt))
    recipe_override: Mapped[RecipeOverride | None] = mapped_column(Pydantic(RecipeOverride))
    base_repo: Mapped[str | None] = mapped_column(String(193))
    base_commit: Mapped[str | None] = mapped_column(String(64))
    is_promoted: Mapped[bool] = mapped_column(default=False, server_default=false())
    merged_because: Mapped[str | None] = mapped_column(Text)
    architecture: Mapped[str | None] = mapped_column(String(128))
    parameter_count: Mapped[int | None] = mapped_column(BigInteger)
    weight_bytes: Mapped[int | None] = mapped_column(BigInteger)
    artifact_key: Mapped[str | None] = mapped_column(String(64))
    tags: Mapped[list[str] | None] = mapped_column(JsonColumn)
    show_prompt: Mapped[bool] = mapped_column(default=False, server_default=false())
    sweep: Mapped[str | None] = mapped_column(String(128), index=True)
    sweep_place: Mapped[int | None]
    license: Mapped[str | None] = mapped_column(String(100))
    card: Mapped[StoredCard | None] = mapped_column(Pydantic(StoredCard), deferred=True)
    run: Mapped[int] = mapped_column(default=1)
    event_count: Mapped[int] = mapped_column(default=0)
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    request_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


def is_understood(submission: SubmissionRow | Submission) -> bool:
    """Return whether this version knows how the submission is to be served; a newer one may have stored it."""
    how = [submission.kind, submission.dtype, submission.quantization]
    return not any(unknown_members([*how, submission.formatter, submission.reward_formatter]))


class StoredPromptRow(Table):
    """A prompt that an account has pushed; ``newest`` is the number of its newest version."""

    __tablename__ = "stored_prompts"

    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    newest: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class StoredPromptVersionRow(Table):
    """A version, which never changes."""

    __tablename__ = "stored_prompt_versions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["account_id", "name"], ["stored_prompts.account_id", "stored_prompts.name"]
        ),
    )

    account_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    prompt: Mapped[Prompt] = mapped_column(Pydantic(Prompt))
    note: Mapped[str | None] = mapped_column(String(64))
    created_by: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class StoredPromptLabelRow(Table):
    """A label, the version that it names, and the one that it named before its last move."""

    __tablename__ = "stored_prompt_labels"
    __table_args__ = (
        ForeignKeyConstraint(
            ["account_id", "name"], ["stored_prompts.account_id", "stored_prompts.name"]
        ),
    )

    account_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    label: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int]
    previous: Mapped[int | None]
    moved_by: Mapped[str] = mapped_column(String(64))
    moved_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SweepRow(Table):
    """Variants of one repo that were entered together; each submission names its sweep, and its place in it from 1."""

    __tablename__ = "sweeps"
    __table_args__ = (
        UniqueConstraint("account_id", "idempotency_key"),
        Index("ix_sweeps_account_id_created_at", "account_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    developer: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(193))
    repo: Mapped[str] = mapped_column(String(193))
    revision: Mapped[str | None] = mapped_column(String(128))
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    request_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AliasRow(Table):
    """A developer's name for a submission, which stands for one submission of the repo at a time."""

    __tablename__ = "submission_aliases"

    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    repo: Mapped[str] = mapped_column(String(193), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), index=True)
    set_at: Mapped[datetime] = mapped_column(UtcDateTime)


class HubTokenRow(Table):
    """A developer's own Hub token, encrypted (hub_tokens.py), until the submission's weights are serialized."""

    __tablename__ = "hub_tokens"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    sealed: Mapped[str] = mapped_column(String(2_048))
    kept_at: Mapped[datetime] = mapped_column(UtcDateTime)


class QuotaRow(Table):
    """The limits that an admin has set for one developer. Where one is None, the platform's own limit holds; 0 is no limit."""

    __tablename__ = "quotas"

    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    per_hour: Mapped[int | None] = mapped_column(BigInteger)
    live: Mapped[int | None] = mapped_column(BigInteger)
    in_progress: Mapped[int | None] = mapped_column(BigInteger)
    artifact_bytes: Mapped[int | None] = mapped_column(BigInteger)


class RunStartRow(Table):
    """The start of a run of the pipeline, by a submission or a redeploy; kept for an hour."""

    __tablename__ = "run_starts"
    __table_args__ = (Index("ix_run_starts_account_id_at", "account_id", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class SubmissionNumberRow(Table):
    """The last version number given to a repo's name, counted atomically."""

    __tablename__ = "submission_numbers"

    slug: Mapped[str] = mapped_column(String(96), primary_key=True)
    last: Mapped[int]


class StageRunRow(Table):
    __tablename__ = "stage_runs"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[Stage] = mapped_column(EnumText(Stage), primary_key=True)
    attempts: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    outcome: Mapped[Outcome | None] = mapped_column(EnumText(Outcome))
    waits_for: Mapped[str | None] = mapped_column(Text)


class MadeArtifact(BaseModel):
    """The artifact that a run beside the version that serves has serialized; its submission names it once that version serves."""

    model_config = ConfigDict(frozen=True)

    artifact_key: str
    merged_because: str | None = None


class RolloutRow(Table):
    """A run of the pipeline beside the version that serves (rollouts/). The newest of a submission counts.

    ``replaced`` is the version that it took the place of; ``restores`` is one that a rollback brings back. ``made`` is its own artifact,
    and ``promotes`` says that this is to be the adapter merged into its base.
    ``because`` says why the platform began it (rollouts/unasked.py); None where a developer did. In a canary, waits from the bucket ``slow_from`` on are slow (rollouts/canaries.py).
    """

    __tablename__ = "rollouts"
    __table_args__ = (Index("ix_rollouts_phase", "phase"),)

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int] = mapped_column(primary_key=True)
    phase: Mapped[RolloutPhase] = mapped_column(EnumText(RolloutPhase))
    share: Mapped[float] = mapped_column(default=1.0)
    canary_s: Mapped[float | None]
    slow_from: Mapped[int | None]
    replaced: Mapped[ServedVersion | None] = mapped_column(Pydantic(ServedVersion))
    restores: Mapped[ServedVersion | None] = mapped_column(Pydantic(ServedVersion))
    made: Mapped[MadeArtifact | None] = mapped_column(Pydantic(MadeArtifact))
    promotes: Mapped[bool] = mapped_column(default=False, server_default=false())
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    shifting_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    draining_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failure: Mapped[Failure | None] = mapped_column(Pydantic(Failure))
    because: Mapped[str | None] = mapped_column(Text)

    @property
    def is_move(self) -> bool:
        """Return whether it brings the version that serves to a server of others."""
        return self.because is not None and self.restores is not None

    @property
    def key(self) -> str:
        """The key of the deployment beside."""
        return beside(self.submission_id, self.run)


class CanaryConversationRow(Table):
    """A conversation that began while a canary ran, of one of its two versions; deleted when the canary has ended.

    ``first_bucket`` is its first reply's wait by bucket (rollouts/canaries.py): None without a reply, -1 where it is not compared.
    """

    __tablename__ = "canary_conversations"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    is_new: Mapped[bool]
    has_failed: Mapped[bool]
    first_bucket: Mapped[int | None]


class CanaryCountRow(Table):
    """Counts of a canary's two versions by reply, as the version before writes them. This version neither reads nor writes it."""

    __tablename__ = "canary_counts"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int] = mapped_column(primary_key=True)
    is_new: Mapped[bool] = mapped_column(primary_key=True)
    replies: Mapped[int] = mapped_column(default=0)
    faults: Mapped[int] = mapped_column(default=0)
    waits: Mapped[list[int]] = mapped_column(JsonColumn, default=list)


class SubmissionEventRow(Table):
    __tablename__ = "submission_events"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    kind: Mapped[EventKind] = mapped_column(EnumText(EventKind))
    stage: Mapped[Stage | None] = mapped_column(EnumText(Stage))
    level: Mapped[Level] = mapped_column(EnumText(Level))
    message: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(JsonColumn)


class StressReportRow(Table):
    __tablename__ = "stress_reports"

    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), primary_key=True)
    run: Mapped[int] = mapped_column(primary_key=True)
    report: Mapped[StressReport] = mapped_column(Pydantic(StressReport))
