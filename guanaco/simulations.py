"""Models of a planned competition's simulation: how many ratings, users, days and GPU hours a verdict needs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from guanaco.competitions import AssignmentKind, RankingRule
from guanaco.open_enum import OpenEnum


class SimulationRequest(BaseModel):
    """Assumptions on a competition, beside its own rules. True ratios are drawn from a Beta distribution."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    submissions: int = Field(default=20, ge=2, le=200)
    ratings_per_day: float = Field(default=1_000, gt=0, le=1e9, description="Of all users.")
    ratings_per_user: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Each on another submission; where duels settle who is best, the duels of a user.",
    )
    gpus_per_submission: float = Field(
        default=1.0, ge=0, le=1_000, description="Less than 1 where several share a model server."
    )
    mean: float = Field(default=0.6, gt=0, lt=1, description="Mean of the true thumbs-up ratios.")
    spread: float = Field(
        default=0.107, gt=0, le=0.4, description="Standard deviation of the true ratios."
    )
    correlation: float = Field(
        default=0.5, ge=0, le=0.95, description="In duels: of what a user feels for two replies."
    )
    ties: float = Field(
        default=0.2, ge=0, le=0.9, description="Share of the duels between equal ones that tie."
    )
    answering: float = Field(
        default=0.5, ge=0.01, le=1, description="Share of those asked for a rating who give one."
    )
    certainty: float = Field(default=0.95, ge=0.5, le=0.9999)
    most_ratings: int = Field(default=40_000, ge=200, le=1_000_000)
    seasons: int = Field(default=20, ge=2, le=10_000)
    seed: int = Field(default=1, ge=0, lt=2**53)


class SimulatedVerdict(BaseModel):
    """The time to a verdict under one policy and rule, over all simulated seasons; undecided ones count with the most ratings."""

    policy: AssignmentKind
    rule: RankingRule
    is_by_duels: bool = Field(
        default=False, description="Each rating is a duel, and duels settle who is best."
    )
    ratings: float = Field(description="Median.")
    quarter: float = Field(description="A quarter of the seasons needs at most this number.")
    three_quarters: float
    users: float = Field(description="For the median; so are the days and GPU hours.")
    days: float
    gpu_hours: float
    decided: float = Field(description="Share of the seasons.")
    wrong: float = Field(description="Share of the seasons with a wrong verdict.")
    decided_after: list[int | None] = Field(
        description="Ratings until the verdict of each season; None if there was none."
    )


class AskedSimulation(BaseModel):
    """The time to the verdict on all who could be asked under one policy, where a random share is asked; undecided seasons count with the most ratings."""

    policy: AssignmentKind
    answers: float = Field(description="Median.")
    quarter: float = Field(description="A quarter of the seasons needs at most this number.")
    three_quarters: float
    conversations: float = Field(
        description="Conversations that could be asked, for the median; so are the days."
    )
    days: float
    decided: float = Field(description="Share of the seasons.")
    wrong: float = Field(description="Share of the seasons with a wrong verdict.")


class PlannedRegenerations(BaseModel):
    """Compared regenerations that tell the lead of one submission over another to within the margin, whoever leads.

    They are counted apart from every ranking and verdict.
    """

    share: float = Field(description="Share of the regenerations that are compared.")
    of_pair: int = Field(description="Compared regenerations of one pair, each of another user.")
    of_all_pairs: int


class SleepPolicy(OpenEnum):
    """The policies that say which submissions are awake where not all can be."""

    LEAST_USEFUL = "least_useful"
    WORTH = "worth"


class SharedServers(BaseModel):
    """Assumptions on a few model servers that all submissions share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: int = Field(ge=1, le=64, description="Model servers at once; fewer than submissions.")
    swap_s: float = Field(
        default=10, ge=0, le=86_400, description="Seconds in which a server changes its submission."
    )
    rating_s: float = Field(
        default=10, gt=0, le=86_400, description="Seconds of a server for each rating."
    )


class SharedVerdict(BaseModel):
    """The GPU hours to a verdict on shared servers under one policy of sleep, by thumbs; undecided seasons count with all their ratings."""

    policy: SleepPolicy
    gpu_hours: float = Field(description="Median.")
    quarter: float = Field(description="A quarter of the seasons needs at most this number.")
    three_quarters: float
    days: float = Field(description="Median; so are ratings and changes.")
    ratings: float
    changes: float = Field(description="Times that a server was given a submission.")
    decided: float = Field(description="Share of the seasons.")
    wrong: float = Field(description="Share of the seasons with a wrong verdict.")


class Simulation(BaseModel):
    within: float
    request: SimulationRequest
    verdicts: list[SimulatedVerdict]
    servers: SharedServers | None = None
    shared: list[SharedVerdict] = []
    asked: list[AskedSimulation] = []
    regenerations: PlannedRegenerations | None = None
