"""The recipe of an artifact on the platform's GPUs, and what of it a cluster must know."""

from __future__ import annotations

import json
from typing import Any

from guanaco.errors import CorruptConfig, InvalidInput, UnsupportedArchitecture
from guanaco.recipes import Recipe, RecipeOverride
from guanaco.submissions import Quantization
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Resources
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.policy import RecipePolicy
from guanaco_server.recipes.recipe import NO_OVERRIDE, choose, pinned


class RecipeChooser:
    def __init__(self, store: ArtifactStore, policy: RecipePolicy) -> None:
        self._store = store
        self._policy = policy

    def check(self, override: RecipeOverride) -> None:
        """NoSuchGpu for a type that the platform does not have; InvalidInput where it has none at all."""
        if override.gpu is not None:
            self._policy.fleet.named(override.gpu)
        elif not self._policy.has_gpus:
            raise InvalidInput(
                "The platform has no GPUs configured, so there is nothing to choose.",
                hint="The operator names them in GUANACO_GPU_TYPES.",
            )

    async def choose(
        self,
        submission_id: str,
        artifact_key: str,
        max_model_tokens: int,
        quantization: Quantization | None,
        override: RecipeOverride | None,
    ) -> Recipe | None:
        """None without GPUs. NoRecipe, NoSuchGpu, or what is wrong with a config that must be understood."""
        if not self._policy.has_gpus:
            return None
        override = override or NO_OVERRIDE
        needs = self._policy.needs(max_model_tokens)
        config: dict[str, Any] = json.loads(await self._store.read(artifact_key, "config.json"))
        manifest = await self._store.find(artifact_key)
        try:
            shape = read_shape(config)
        except (UnsupportedArchitecture, CorruptConfig):
            if override.gpu is None or (override.gpus or override.tensor_parallel) is None:
                raise
            return pinned(self._policy.fleet.named(override.gpu), needs, override, quantization)
        stored_bytes = manifest.tensors_bytes if manifest else None
        model = Model(submission_id, shape, stored_bytes or None, quantization)
        return choose(model, needs, self._policy.fleet, override)

    def resources(self, recipe: Recipe | None) -> Resources:
        return to_resources(recipe, self._policy) if recipe else Resources()


def to_resources(recipe: Recipe, policy: RecipePolicy) -> Resources:
    """What the cluster must find a machine for."""
    return Resources(
        gpu_type=recipe.gpu_type,
        gpu_count=recipe.gpu_count,
        image=policy.images.get(recipe.image),
    )
