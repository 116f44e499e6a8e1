"""A submission and its life: request, status, stages, events, stress report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guanaco.errors import Blame
from guanaco.forms import OneLine, Repo, Revision
from guanaco.open_enum import OpenEnum
from guanaco.parameters import GenerationParams as GenerationParams  # part of this module's surface
from guanaco.prompts import Prompt, PromptFormatter
from guanaco.stored_prompts import PromptReferenceText


class Status(OpenEnum):
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


@dataclass(frozen=True)
class StageSpec:
    """One stage: its name, the submission's status meanwhile, and what the stage does.

    ``may_be_skipped`` decides about a stage that is new: whether a run that was past its place when the stage was
    introduced goes on without it, or runs it late (docs/decisions/0016-stages-in-flight.md). A version that a rollback brings
    back is not asked again what ``holds_for_good``: it had passed that stage. A developer's Hub token is deleted after the
    last stage that ``reads_hub``; that of an adapter after the last that ``reads_hub_for_adapter``, which may merge it.
    """

    name: str
    status: Status
    sentence: str
    may_be_skipped: bool = False
    holds_for_good: bool = False
    reads_hub: bool = False
    reads_hub_for_adapter: bool = False


class Stage(OpenEnum):
    """The pipeline's stages, in their order."""

    # The one table of stages. A new stage is one entry here, and one function in the server's
    # submissions/pipeline/stages.py.
    RESOLVE = StageSpec(
        "resolve",
        Status.CHECKING,
        "Pin the exact commit",
        holds_for_good=True,
        reads_hub=True,
    )
    CHECK = StageSpec(
        "check",
        Status.CHECKING,
        "Check config, tokenizer and weights",
        holds_for_good=True,
        reads_hub=True,
    )
    SERIALIZE = StageSpec(
        "serialize",
        Status.SERIALIZING,
        "Stream the weights into the store",
        holds_for_good=True,
        reads_hub=True,
    )
    DEPLOY = StageSpec(
        "deploy", Status.DEPLOYING, "Start the model server", reads_hub_for_adapter=True
    )
    STRESS = StageSpec(
        "stress", Status.STRESS_TESTING, "Measure it under load", holds_for_good=True
    )
    PUBLISH = StageSpec("publish", Status.STRESS_TESTING, "Open it to users")

    spec: StageSpec  # a stage of a later version has none

    def __new__(cls, spec: StageSpec) -> Self:
        member = str.__new__(cls, spec.name)
        member._value_ = spec.name
        member.spec = spec
        return member


def last_to_read_hub(*, is_adapter: bool) -> Stage:
    """Return the last stage that may read the submission's repo at the Hub."""
    return [
        stage
        for stage in Stage
        if stage.spec.reads_hub or (is_adapter and stage.spec.reads_hub_for_adapter)
    ][-1]


PIPELINE_STATUSES = (
    Status.QUEUED,
    *dict.fromkeys(stage.spec.status for stage in Stage),
)  # in order
IN_PROGRESS = frozenset(PIPELINE_STATUSES)


class WeightDtype(OpenEnum):
    """The type in which the weights are stored and served. ``auto`` casts float32 to bfloat16 and keeps anything else."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(OpenEnum):
    """The number format to which vLLM converts the weights when it loads them; the artifact stays as it is."""

    FP8 = "fp8"
    INT8 = "int8"


class SubmissionKind(OpenEnum):
    """A chat model talks to users; a reward model scores the candidates of a chat model's reply."""

    CHAT = "chat"
    REWARD = "reward"


SHOW_PROMPT_NOTE = "True if everybody sees the prompt on the model's public page."
NO_REWARD = "none"  # in the place of a reward model's id: choose by log-probability


class SubmissionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    kind: SubmissionKind = Field(
        default=SubmissionKind.CHAT,
        description="chat, or reward: a sequence classifier that is never assigned to users.",
    )
    repo: Repo = Field(description="The Hugging Face model repo, org/name.")
    revision: Revision | None = Field(
        default=None, description="Branch, tag or commit; the repo's main branch otherwise."
    )
    name: OneLine | None = Field(default=None, description="Shown on the leaderboard.")
    params: GenerationParams = GenerationParams()
    formatter: Prompt = PromptFormatter()
    prompt: PromptReferenceText | None = Field(
        default=None,
        description="A stored prompt in the place of a formatter: `name@3`, or `name@label`, whose moves it follows.",
    )
    dtype: WeightDtype = Field(
        default=WeightDtype.AUTO,
        description="Type of the served weights; auto casts float32 to bfloat16 and keeps anything else.",
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Serve fewer bits a weight: fp8, or int8 for a mixture's experts. Refused when it costs too much quality.",
    )
    reward: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The submission of the reward model that picks among params.best_of candidates; the platform's default otherwise, and log-probability with `none`.",
    )
    reward_formatter: Prompt | None = Field(
        default=None,
        description="The form in which the reward model sees the conversation; if unset, its own, or that of the chat model.",
    )
    show_prompt: bool = Field(
        default=False,
        exclude_if=lambda is_shown: not is_shown,  # a server of the version before refuses it
        description=SHOW_PROMPT_NOTE,
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind is SubmissionKind.REWARD:
            if self.reward is not None:
                raise ValueError("A reward model has no reward model of its own: leave out reward")
            if self.quantization is not None:
                raise ValueError("A reward model is served unquantized: leave out quantization")
            if self.formatter != PromptFormatter() or self.prompt is not None:
                raise ValueError(
                    "A reward model takes reward_formatter, which may be left out, and no formatter"
                )
        if self.prompt is not None and self.formatter != PromptFormatter():
            raise ValueError("Give a formatter or a stored prompt, not both")
        if (
            self.kind is not SubmissionKind.REWARD
            and self.params.best_of == 1
            and (self.reward not in (None, NO_REWARD) or self.reward_formatter)
        ):
            raise ValueError(
                "A reward model picks among candidates: params.best_of must be 2 or more"
            )
        return self


class PublicPageRequest(BaseModel):
    """The choice of what a submission's public page shows."""

    model_config = ConfigDict(extra="forbid")

    show_prompt: bool = Field(description=SHOW_PROMPT_NOTE)


class Failure(BaseModel):
    """The reason why a submission failed, and who can do something about it."""

    code: str
    detail: str
    hint: str | None = None
    blame: Blame
    stage: Stage | None = None


class Outcome(OpenEnum):
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
    waits_for: str | None = Field(
        default=None, description="The reason why the stage waits for room, in a sentence."
    )

    @property
    def duration_s(self) -> float | None:
        return (self.ended_at - self.started_at).total_seconds() if self.ended_at else None


class RolloutPhase(OpenEnum):
    """preparing → shifting → draining → done; failed or cancelled from any but the last.

    Up to shifting, every end but ``done`` leaves the version before serving.
    """

    PREPARING = "preparing"
    SHIFTING = "shifting"
    DRAINING = "draining"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_in_progress(self) -> bool:
        return self in (RolloutPhase.PREPARING, RolloutPhase.SHIFTING, RolloutPhase.DRAINING)


class RedeployRequest(BaseModel):
    """A request for a redeploy, which takes over at once or after a canary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    canary: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="The share of new conversations that the new version takes at first; it is stopped when it is worse.",
    )
    canary_s: float = Field(
        default=3_600,
        ge=1,
        le=30 * 86_400,
        allow_inf_nan=False,
        description="Seconds without being worse after which the new version takes over.",
    )
    promote: bool = Field(
        default=False,
        description="Merge the LoRA adapter, which is served on its base's model server, into its base from now on.",
    )


class Rollout(BaseModel):
    """A redeploy of a submission that is served: its new version comes up beside the one that serves."""

    run: int
    phase: RolloutPhase
    share: float = Field(
        default=1.0, description="The share of new conversations that go to it while it shifts."
    )
    canary_s: float | None = Field(
        default=None, description="How long a canary takes that share before it takes over."
    )
    began_at: datetime
    shifting_at: datetime | None = Field(
        default=None, description="Time since which new conversations go to the new version."
    )
    ended_at: datetime | None = None
    failure: Failure | None = Field(
        default=None, description="The reason why the version before still serves."
    )
    because: str | None = Field(
        default=None,
        description="The reason why the platform began it by itself; null where a developer did.",
    )
    promotes: bool = Field(
        default=False, description="True if its version is the LoRA adapter merged into its base."
    )

    @property
    def is_canary(self) -> bool:
        """Return whether it takes its share now, which may take hours."""
        return self.phase is RolloutPhase.SHIFTING and self.canary_s is not None


class Unserved(BaseModel):
    """A published submission for which no model server answers now."""

    since: datetime
    trouble: str | None = Field(
        default=None,
        description="The kind of problem: `crashed`, or, caused by the cluster, `unplaced`, `queued` (it waits for its place, which is no fault), `node_lost`, `object_missing`, `image_missing`; `artifact_missing` where the artifact store has lost it; null while a server starts.",
    )
    problem: str = Field(description="The problem, in a sentence.")


class Submission(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    kind: SubmissionKind = SubmissionKind.CHAT
    developer: str
    repo: str
    revision: str | None
    commit: str | None
    name: str
    status: Status
    failure: Failure | None
    params: GenerationParams
    formatter: Prompt
    prompt: str | None = Field(
        default=None, description="The stored prompt that it names, such as `support@production`."
    )
    prompt_version: int | None = Field(
        default=None, description="The version of it that it has now; `formatter` is its text."
    )
    dtype: WeightDtype
    quantization: Quantization | None
    reward: str | None = Field(
        default=None,
        description="The reward model that it names; the platform's default otherwise.",
    )
    reward_formatter: Prompt | None = None
    base_repo: str | None = Field(description="For a LoRA adapter: the repo of the model under it.")
    base_commit: str | None = Field(description="The commit that the base model is pinned to.")
    is_promoted: bool = Field(
        default=False,
        description="For a LoRA adapter: whether the version that serves is merged because it was promoted.",
    )
    merged_because: str | None = Field(
        default=None,
        description="For a LoRA adapter: why it is merged into its base; null if it is served unmerged. A redeploy changes it when its version serves.",
    )
    architecture: str | None
    parameter_count: int | None
    weight_bytes: int | None
    artifact_key: str | None
    run: int
    created_at: datetime
    updated_at: datetime
    aliases: list[str] = Field(
        default=[], description="The name that its developer gave it, like `org/model@champion`."
    )
    tags: list[str] = []
    show_prompt: bool = Field(default=False, description=SHOW_PROMPT_NOTE)
    sweep: str | None = Field(
        default=None, description="The sweep that it was entered with, and whose check it shares."
    )
    rollout: Rollout | None = Field(
        default=None, description="The newest redeploy that was made while it was served."
    )
    unserved: Unserved | None = Field(
        default=None,
        description="The reason why no model server answers for it, while it should be served.",
    )
    is_asleep: bool = Field(
        default=False,
        description="True while its model server sleeps, as it has its ratings or others need the room; the next message wakes it.",
    )
    no_worker_since: datetime | None = Field(
        default=None,
        description="The time since when no worker of the platform has been heard of, while it is served or in progress: nothing moves on, and what is said of its model server may be out of date. Null while there is a worker, and in lists.",
    )
    stages: list[StageRun] = []

    @property
    def is_served(self) -> bool:
        return self.status in (Status.DEPLOYED, Status.INACTIVE)

    @property
    def is_in_progress(self) -> bool:
        """True while the pipeline works on it, or a redeploy is under way. A canary that takes its share is not waited for."""
        rollout = self.rollout
        is_rolling = rollout is not None and rollout.phase.is_in_progress and not rollout.is_canary
        return self.status.is_in_progress or is_rolling


class EventKind(OpenEnum):
    STATUS = "status"
    STAGE = "stage"
    LOG = "log"


class Level(OpenEnum):
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


class StressThresholds(BaseModel):
    """The limits of a stress check: for the 95th percentiles, in milliseconds, and for the share of errors."""

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    error_rate: float


class Percentiles(BaseModel):
    """Milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float


class HistogramBin(BaseModel):
    """The number of values under ``upper_ms`` and not under the bin before."""

    upper_ms: float
    count: int


class StressRequest(BaseModel):
    """One request of the verdict's load: when it was due, and how long it took from then on."""

    due_s: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    output_tokens: int = 0
    error: str | None = None


class StressLoad(BaseModel):
    """One of the loads of a stress check. ``why`` says what was wrong with one that the model server did not bear."""

    rate: float = Field(description="Requests a second.")
    requests: int
    errors: int
    ttft_ms: Percentiles | None
    e2e_ms: Percentiles | None
    is_borne: bool
    why: str | None = None


class StressBeside(BaseModel):
    """The load that other submissions put on the same model server during a stress check, and on others of its machine."""

    submissions: int = Field(description="Other submissions that shared the model server.")
    mean: float = Field(description="Their sequences under way at a time, on average.")
    most: int = Field(description="The most of them that were seen under way at once.")
    servers: int = Field(
        default=0,
        description="Other model servers of the same machine that answered requests meanwhile. The load was not raised beyond the verdict's then.",
    )


class ReusedLoad(BaseModel):
    """The submission that the figures of a stress check come from, if it sent no load of its own: one that shares its model server."""

    submission_id: str | None = Field(
        default=None, description="Null if it is another developer's."
    )
    at: datetime = Field(description="Time at which the load was sent.")
    own_requests: int = Field(
        description="Requests with this submission's own prompts and parameters, which kept to every limit."
    )


class Divergence(BaseModel):
    """The differences between the log-probabilities of a fixed text's tokens, of an adapter merged into its base and added to it."""

    tokens: int
    mean: float = Field(description="The mean of the absolute differences.")
    largest: float
    merged_perplexity: float
    unmerged_perplexity: float


class StressReport(BaseModel):
    """The figures of a load of requests that arrived as a Poisson process, whether or not earlier ones were answered."""

    is_passed: bool
    reasons: list[str] = Field(description="One sentence for each threshold that was missed.")
    confidence: float | None = Field(
        default=None,
        description="Confidence of the verdict, by the number of requests; null in reports of older checks.",
    )
    thresholds: StressThresholds | None = Field(
        default=None, description="Null in reports before 0.1."
    )
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
    loads: list[StressLoad] = Field(
        default=[],
        description="All loads in their order: those before the verdict's, and the rates doubled after it until the server does not bear them.",
    )
    capacity: int | None = Field(
        default=None,
        description="Sequences under way at once under the highest load that the model server bore; a reply has one for each of its candidates.",
    )
    candidates: int = Field(
        default=1,
        description="Candidates of each reply: best_of, or 1 if the sampling is greedy. 1 in reports of older checks, whose capacity counts replies.",
    )
    trace: list[StressRequest] = Field(
        default=[], description="Each request of the load that the verdict rests on."
    )
    beside: StressBeside | None = Field(
        default=None,
        description="Null if nobody else used the model server or another one of its machine.",
    )
    divergence: Divergence | None = Field(
        default=None,
        description="Only for a promoted adapter, beside the version that is served unmerged; null for all others.",
    )
    not_compared: str | None = Field(
        default=None,
        description="For a promoted adapter: why it was not compared with the version that is served unmerged; null if it was.",
    )
    reused: ReusedLoad | None = Field(
        default=None, description="Null if the load was sent for this submission."
    )
    merged_because: str | None = Field(
        default=None,
        description="For a LoRA adapter that is merged into its base: why it is; null for all others.",
    )
