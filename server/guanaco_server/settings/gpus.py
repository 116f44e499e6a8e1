"""Settings of the GPUs: which there are, what a replica must hold, what they cost."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

from guanaco.errors import NoSuchGpu
from guanaco.recipes import ImageKind
from guanaco_server.recipes.hardware import find_gpus
from guanaco_server.recipes.prices import Budgets, PriceTable
from guanaco_server.recipes.recipe import Fleet, RecipePolicy


class GpuSettings(BaseModel):
    """GPUs"""

    gpu_types: list[str] = Field(
        default=[],
        description="Types of GPU that model servers may use (A100-40, A100-80, H100, H200, L40S, MI300X, MI325X); with none there are no recipes, as on a CPU.",
    )
    gpus_per_machine: int = Field(
        default=8, ge=1, le=64, description="GPUs of one machine: the most that one replica gets."
    )
    gpu_prices: dict[str, float] = Field(
        default={},
        description="Price of one GPU and hour by type, in place of the default ones (docs/recipes.md).",
    )
    gpu_images: dict[ImageKind, str] = Field(
        default={},
        description="Image of the model server by kind (cuda, rocm), where it is not the cluster's own.",
    )
    recipe_sessions: int = Field(
        default=16,
        ge=1,
        le=4_096,
        description="Sessions of full length that one replica must have room for.",
    )
    recipe_tokens_per_second: float = Field(
        default=20,
        ge=0,
        description="Tokens a second that each of them must get; people read some 5.",
    )
    currency: str = Field(default="USD", description="Currency of prices and budgets.")
    monthly_budget: float | None = Field(
        default=None,
        ge=0,
        description="Cost of a developer's GPUs in a calendar month (UTC) above which nothing new is deployed; no limit if unset.",
    )
    monthly_budgets: dict[str, float] = Field(
        default={}, description="Other monthly budgets, by developer's name."
    )

    @field_validator("gpu_types")
    @classmethod
    def _are_known(cls, names: list[str]) -> list[str]:
        try:
            return [gpu.name for gpu in find_gpus(names)]
        except NoSuchGpu as error:
            raise ValueError(error.detail) from None

    @field_validator("gpu_prices", "monthly_budgets")
    @classmethod
    def _are_amounts(cls, amounts: dict[str, float]) -> dict[str, float]:
        if wrong := next(
            (name for name, amount in amounts.items() if not 0 <= amount < 1e12), None
        ):
            raise ValueError(f"The amount for {wrong[:80]} must be 0 or more")
        return amounts

    @property
    def recipe_policy(self) -> RecipePolicy:
        return RecipePolicy(
            Fleet(find_gpus(self.gpu_types), PriceTable(self.gpu_prices), self.gpus_per_machine),
            self.recipe_sessions,
            self.recipe_tokens_per_second,
            self.gpu_images,
        )

    @property
    def budgets(self) -> Budgets:
        return Budgets(self.monthly_budget, self.monthly_budgets, self.currency)
