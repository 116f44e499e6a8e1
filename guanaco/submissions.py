"""A submission and its life: request, status, stages, events, stress report."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from guanaco.errors import Blame
from guanaco.forms import OneLine, Repo, Revision
from guanaco.prompts import PromptFormatter


class Status(StrEnum):
    QUEUED = "queued"
    CHECKING = "checking"
    SERIALIZING = "serializing"
    DEPLOYING = "deploying"
    STRESS_TESTING = "stress_testing"
    DEPLOYED = "deployed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INACTIVE = "inactive"
    TORN_DOWN = "torn_down"

    @property
    def is_in_progress(self) -> bool:
        return self in IN_PROGRESS


IN_PROGRESS = frozenset(
    {Status.QUEUED, Status.CHECKING, Status.SERIALIZING, Status.DEPLOYING, Status.STRESS_TESTING}
)


class Stage(StrEnum):
    """The pipeline's steps, in their order."""

    RESOLVE = "resolve"
    CHECK = "check"
    SERIALIZE = "serialize"
    DEPLOY = "deploy"
    STRESS = "stress"
    PUBLISH = "publish"


StoppingWord = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class GenerationParams(BaseModel):
    """Sampling parameters as vLLM knows them, and the token budget of a turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=1.0, ge=0, le=2, description="0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=40, ge=0, le=1_000, description="0 keeps every token.")
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    stopping_words: list[StoppingWord] = Field(default=["\n"], max_length=16)
    max_input_tokens: int = Field(default=1_024, ge=16, le=131_072)
    max_output_tokens: int = Field(default=64, ge=1, le=4_096)
    best_of: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Candidates per reply, of which the one with the highest mean token log-probability is sent.",
    )


class WeightDtype(StrEnum):
    """What the weights are stored and served in. ``auto`` casts float32 to bfloat16 and keeps anything else."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(StrEnum):
    """What vLLM makes of the weights when it loads them; the artifact stays as it is."""

    FP8 = "fp8"
    INT8 = "int8"


class SubmissionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    repo: Repo = Field(description="The Hugging Face model repo, org/name.")
    revision: Revision | None = Field(
        default=None, description="Branch, tag or commit; the repo's main branch otherwise."
    )
    name: OneLine | None = Field(default=None, description="Shown on the leaderboard.")
    params: GenerationParams = GenerationParams()
    formatter: PromptFormatter = PromptFormatter()
    dtype: WeightDtype = Field(
        default=WeightDtype.AUTO,
        description="Type of the served weights; auto casts float32 to bfloat16 and keeps anything else.",
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Serve fewer bits a weight: fp8, or int8 for a mixture's experts. Refused when it costs too much quality.",
    )


class Failure(BaseModel):
    """Why a submission failed, and who can do something about it."""

    code: str
    detail: str
    hint: str | None = None
    blame: Blame
    stage: Stage | None = None


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StageRun(BaseModel):
    """One stage of one run of the pipeline; ``attempts`` counts restarts of the platform and retries."""

    run: int
    stage: Stage
    attempts: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Outcome | None = None

    @property
    def duration_s(self) -> float | None:
        return (self.ended_at - self.started_at).total_seconds() if self.ended_at else None


class Submission(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    developer: str
    repo: str
    revision: str | None
    commit: str | None
    name: str
    status: Status
    failure: Failure | None
    params: GenerationParams
    formatter: PromptFormatter
    dtype: WeightDtype
    quantization: Quantization | None
    base_repo: str | None = Field(description="For a LoRA adapter: the repo of the model under it.")
    base_commit: str | None = Field(description="The commit that the base model is pinned to.")
    architecture: str | None
    parameter_count: int | None
    weight_bytes: int | None
    artifact_key: str | None
    run: int
    created_at: datetime
    updated_at: datetime
    stages: list[StageRun] = []


class EventKind(StrEnum):
    STATUS = "status"
    STAGE = "stage"
    LOG = "log"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SubmissionEvent(BaseModel):
    """``seq`` counts a submission's events from 1 without gaps; it is the SSE event's id."""

    seq: int
    at: datetime
    kind: EventKind
    stage: Stage | None = None
    level: Level = Level.INFO
    message: str
    data: dict[str, Any] = {}


class Percentiles(BaseModel):
    """Milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float


class HistogramBin(BaseModel):
    """How many values lie under ``upper_ms`` and not under the bin before."""

    upper_ms: float
    count: int


class StressReport(BaseModel):
    """What a short open-loop load of streaming requests measured."""

    is_passed: bool
    reasons: list[str] = Field(description="One sentence for each threshold that was missed.")
    at: datetime
    duration_s: float
    offered_rate: float = Field(
        description="Requests a second that were due, whether or not earlier ones had ended."
    )
    requests: int
    errors: int
    error_rate: float
    output_tokens: int
    tokens_per_second: float
    ttft_ms: Percentiles | None = Field(description="Time to first token.")
    tpot_ms: Percentiles | None = Field(description="Time per output token after the first.")
    e2e_ms: Percentiles | None
    ttft_histogram: list[HistogramBin] = Field(
        default=[], description="Bins of one width, the first empty; none in reports before 0.1."
    )
    tpot_histogram: list[HistogramBin] = []
    error_samples: list[str] = []
