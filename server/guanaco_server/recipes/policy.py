"""What the platform's settings say about recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guanaco.recipes import ImageKind
from guanaco_server.recipes.recipe import NO_GPUS, Fleet, Needs


@dataclass(frozen=True)
class RecipePolicy:
    """Without GPUs no recipes are made. ``images`` are model servers' images, where they differ from the cluster's own."""

    fleet: Fleet = NO_GPUS
    sessions: int = 16
    tokens_per_second: float = 0.0
    images: Mapping[ImageKind, str] = field(default_factory=dict)

    @property
    def has_gpus(self) -> bool:
        return bool(self.fleet.gpus)

    def needs(self, max_model_tokens: int) -> Needs:
        return Needs(max_model_tokens, self.sessions, self.tokens_per_second)


NO_RECIPES = RecipePolicy()
