"""A/B experiments: variants of model, prompt template or parameters, and what came of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guanaco.estimates import Estimate
from guanaco.forms import Slug
from guanaco.open_enum import OpenEnum
from guanaco.parameters import ParamChanges as ParamChanges  # part of this module's surface
from guanaco.prompts import Prompt
from guanaco.stored_prompts import PromptReferenceText

MAX_VARIANTS = 8


class Overrides(BaseModel):
    """Values that a conversation uses in place of its submission's own; None keeps the submission's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    formatter: Prompt | None = None
    params: ParamChanges | None = None


class Variant(Overrides):
    name: Slug
    prompt: PromptReferenceText | None = Field(
        default=None,
        description="A stored prompt in the place of a formatter, `name@3` or `name@label`; it is the version that it names now, and stays so.",
    )
    share: float = Field(
        default=1.0,
        gt=0,
        le=1_000,
        allow_inf_nan=False,
        description="The part of the experiment's users that gets it, relative to the others' shares.",
    )
    model: str | None = Field(
        default=None,
        max_length=260,
        description="The submission that it talks to, by id or alias; what the competition's rule says otherwise.",
    )


class ExperimentRequest(BaseModel):
    """The first variant is the one that the others are compared with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    competition: Slug | None = Field(
        default=None, description="The apps whose conversations take part; all if unset."
    )
    users_from: float = Field(
        default=0.0, ge=0, lt=1, description="Start of its part of all users."
    )
    users_to: float = Field(default=1.0, gt=0, le=1, description="And where it ends.")
    variants: tuple[Variant, ...] = Field(min_length=2, max_length=MAX_VARIANTS)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.users_from >= self.users_to:
            raise ValueError("users_to must be greater than users_from.")
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ValueError("Each variant must have a name of its own.")
        return self

    def overlaps(self, other: ExperimentRequest) -> bool:
        """Tell whether a conversation could be in both experiments."""
        is_apart = self.competition and other.competition and self.competition != other.competition
        return (
            not is_apart and self.users_from < other.users_to and other.users_from < self.users_to
        )


class ExperimentState(OpenEnum):
    """A draft may be changed; what has run stays as it is, and may run again."""

    DRAFT = "draft"
    RUNNING = "running"
    STOPPED = "stopped"


class ObstacleReason(OpenEnum):
    """Why a running experiment takes no conversation now."""

    ASLEEP = "asleep"
    STARTING = "starting"
    FULL = "full"
    NOT_DEPLOYED = "not_deployed"
    COMPETITION_CLOSED = "competition_closed"


class Obstacle(BaseModel):
    """A reason for which a running experiment takes no conversations now: a model of a variant, or its competition."""

    variant: str | None = Field(description="Null where it is the competition.")
    model: str | None = Field(description="The variant's submission.")
    reason: ObstacleReason
    detail: str = Field(description="A sentence: what is so, and what ends it.")


Obstacles = Annotated[
    list[Obstacle],
    Field(
        description="While there is any, a running experiment takes no new conversation, in no variant. Empty if it does not run, and from older servers."
    ),
]


class Experiment(ExperimentRequest):
    state: ExperimentState
    created_at: datetime
    started_at: datetime | None = Field(description="The first time.")
    stopped_at: datetime | None = Field(description="The last time.")
    obstacles: Obstacles = []


class VariantResults(BaseModel):
    """The user is the unit: of a user's ratings the first counts, as it was given, of lengths and times the user's mean."""

    variant: str
    users: int
    conversations: int
    thumbs_up: int
    thumbs_down: int
    thumbs_up_ratio: Estimate | None = Field(description="Wilson's interval.")
    thumbs_up_difference: Estimate | None = Field(
        description="Less the first variant's ratio, with Newcombe's interval: for one look at the end."
    )
    thumbs_up_difference_always: Estimate | None = Field(
        default=None,
        description="The same difference; the interval holds at every look and for all variants together. Null from older servers.",
    )
    conversation_length: Estimate | None = Field(
        description="Messages not deleted, both sides; mean over users, with Student's interval."
    )
    reply_ms: Estimate | None = Field(
        description="Median over users of a whole reply's time, with the interval of its order statistics."
    )


class ExperimentResults(BaseModel):
    experiment: str
    state: ExperimentState
    at: datetime
    variants: list[VariantResults]
    obstacles: Obstacles = []
