"""Competitions: a window, who may enter, how conversations are assigned, and how the entries are ranked."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guanaco.forms import Moment, OneLine, Slug
from guanaco.open_enum import OpenEnum
from guanaco.parameters import GenerationParams

Weight = Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False)]

CHOSEN = "~chosen"  # in the place of a competition where the app named the submission: no competition has it, so nothing counts it
OPEN = "open"  # the competition that is always there, and that every submission enters
ENDS_TOO_EARLY = "ends_at must be later than starts_at."


class AssignmentKind(OpenEnum):
    """The policies that choose a new conversation's submission."""

    NEWEST = "newest"
    UNIFORM = "uniform"
    ADAPTIVE = "adaptive"
    DECIDE = "decide"


class AssignmentRule(BaseModel):
    """``newest`` takes the newest submission until it has ``newest_until`` ratings; ``adaptive`` is top-two Thompson sampling; ``decide`` sends
    conversations where they soonest show which submission is within a margin of the best (docs/routing.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: AssignmentKind = AssignmentKind.NEWEST
    newest_until: int = Field(
        default=50,
        ge=1,
        description="Ratings after which `newest` moves on, and `adaptive` and `decide` take a submission for new no longer.",
    )
    recency_floor: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of conversations that `adaptive` and `decide` keep for submissions with fewer than `newest_until` ratings.",
    )
    within: float = Field(
        default=0.05,
        ge=0.005,
        le=0.5,
        description="The margin of the board's verdict, and what `decide` aims at: which submission is at most so much worse than the best, in shares of thumbs up.",
    )
    weights: dict[str, Weight] = Field(
        default={},
        description="By submission, its id or alias, how much more or less often than its rule says; 1 otherwise, 0 for none.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**53,
        description="Makes the choices repeatable, and has them recorded; random otherwise.",
    )


class EntryRule(BaseModel):
    """The rule by which published submissions take part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_parameters: int | None = Field(default=None, ge=1)
    per_developer: int | None = Field(
        default=None,
        ge=1,
        description="At most this many submissions of one developer take part: the newest.",
    )
    submitted_within: bool = Field(
        default=False, description="Only what was submitted within the window."
    )


class RankingRule(OpenEnum):
    """The rules of ranking: by the thumbs-up ratio's lower bound, by Bradley-Terry over paired votes, or by both."""

    THUMBS_UP = "thumbs_up"
    BRADLEY_TERRY = "bradley_terry"
    COMBINED = "combined"


def _is_zero(value: object) -> bool:
    """Leave a newer field out where it says nothing: so a server of the version before takes what is sent."""
    return value == 0


class DuelRule(BaseModel):
    """The rule by which two submissions may answer the same message, so that the user says which reply is better."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    battles: bool = Field(
        default=False,
        description="An app may ask for two replies side by side, the second one by another submission.",
    )
    counted: bool = Field(
        default=False,
        description="Votes on battles count in the ranking, by `bradley_terry` or `combined`.",
    )
    style_control: bool = Field(
        default=False,
        description="Strengths are those of replies of the same length and markdown on the same side; only with `counted`.",
    )
    regenerations: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="The share of regenerations, where an app allows it, that are compared at random: the new reply is by the conversation's own submission or by another one, each with a chance of a half.",
        exclude_if=_is_zero,
    )

    @property
    def are_kept(self) -> bool:
        """Tell whether there are duels to count, be it for the ranking or for the developers alone."""
        return self.battles or self.counted

    @model_validator(mode="after")
    def _controls_what_counts(self) -> Self:
        if self.style_control and not self.counted:
            raise ValueError("duels.style_control needs duels.counted.")
        return self


class AskRule(BaseModel):
    """The rule by which the platform asks a random share of conversations for a rating, so that a ratio can be told of all of them (docs/scores.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: int = Field(
        ge=1,
        le=1_000,
        description="A user's first conversation with a submission that gets its reply to the message of this number may be asked.",
    )
    share: float = Field(
        ge=0.01,
        le=1,
        description="The chance to be asked. It is drawn from the assignment's seed and the conversation's id.",
    )
    answer_minutes: int = Field(
        default=60,
        ge=1,
        le=10_080,
        description="Minutes within which a rating counts as the answer.",
    )


class MemoryRule(BaseModel):
    """The rule by which conversations remember what no longer fits into the prompt; None leaves it to each submission."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recall_tokens: int | None = Field(
        default=None,
        ge=0,
        le=8_192,
        description="In place of each submission's own; 0 recalls nothing.",
    )
    summary_tokens: int | None = Field(
        default=None,
        ge=0,
        le=2_048,
        description="In place of each submission's own; 0 shows no summaries.",
    )

    def applied_to(self, params: GenerationParams) -> GenerationParams:
        """Return the parameters with this rule's budgets."""
        if self.recall_tokens is None and self.summary_tokens is None:
            return params
        return params.model_copy(update=self.model_dump(exclude_none=True))


class CompetitionRequest(BaseModel):
    """``starts_at`` is within the window, ``ends_at`` is not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine
    starts_at: Moment
    ends_at: Moment | None = None
    entry: EntryRule = EntryRule()
    assignment: AssignmentRule = AssignmentRule()
    ranking: RankingRule = RankingRule.THUMBS_UP
    duels: DuelRule = DuelRule()
    memory: MemoryRule = MemoryRule()
    feedback_after: int | None = Field(
        default=None,
        ge=1,
        le=1_000,
        description="The reply to a user's message of this number says `ask_for_feedback`.",
    )
    ask: AskRule | None = Field(
        default=None,
        description="In place of `feedback_after`: a random share is asked, and a ratio of all conversations is estimated from the answers.",
    )
    queue: str | None = Field(
        default=None,
        pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="Kueue's LocalQueue in which the model servers of what is deployed for it wait for a place. Default: the platform's.",
    )

    retention_days: int | None = Field(
        default=None,
        ge=1,
        le=36_500,
        description="Days after its beginning that a conversation is removed with its messages, ratings and copies; for ever otherwise. On PostgreSQL up to an eighth later, at least a day and at most 30.",
    )

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> Self:
        if self.ends_at is not None and self.ends_at <= self.starts_at:
            raise ValueError(ENDS_TOO_EARLY)
        return self

    @model_validator(mode="after")
    def _counts_duels_by_strengths(self) -> Self:
        if self.duels.counted and self.ranking is RankingRule.THUMBS_UP:
            raise ValueError("duels.counted needs the ranking bradley_terry or combined.")
        return self

    @model_validator(mode="after")
    def _asks_by_one_rule(self) -> Self:
        if self.ask is not None and self.feedback_after is not None:
            raise ValueError(
                "Set feedback_after or ask, not both: who is asked must be left to chance alone."
            )
        return self

    @property
    def is_settled_by_duels(self) -> bool:
        """Tell whether duels are arranged so that they say who is best, and the verdict is theirs."""
        return (
            self.duels.battles
            and self.duels.counted
            and self.assignment.kind is AssignmentKind.DECIDE
        )


class Competition(CompetitionRequest):
    id: Slug
    frozen_at: datetime | None = None

    def is_running(self, now: datetime) -> bool:
        return self.starts_at <= now and (self.ends_at is None or now < self.ends_at)


class AssignmentDecision(BaseModel):
    """All that the choice depended on: with the ``snapshot`` of that digest, ``seed`` and ``key``.

    ``seen`` by the user, least recent first; ``barred`` were full, or had no model server.
    """

    snapshot: str
    seed: int
    key: str
    seen: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()


class AssignmentReplay(BaseModel):
    """``decision`` is None where its competition had no seed; ``is_same`` where it can no longer be made again.

    ``entries`` of the snapshot took part; ``replayed`` is what the same choice comes to now.
    """

    conversation_id: str
    competition: str
    submission_id: str
    decision: AssignmentDecision | None = None
    entries: int | None = None
    replayed: str | None = None
    is_same: bool | None = None
    chance: float | None = Field(
        default=None,
        description="Chance that the submission was chosen, given the snapshot, what the user had and what was full or away. Null if the choice can no longer be repeated.",
    )
