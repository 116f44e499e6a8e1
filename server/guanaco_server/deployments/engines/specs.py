"""Describes the process that serves a submission: its recipe, resources and command."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from guanaco.errors import CorruptConfig, InvalidInput, UnsupportedArchitecture
from guanaco.recipes import Recipe, RecipeOverride
from guanaco.submissions import Quantization
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.deployments.versions import submission_of
from guanaco_server.engine.artifacts.source import URLS_VARIABLE
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.recipe import (
    NO_OVERRIDE,
    NO_RECIPES,
    RecipePolicy,
    choose,
    pinned,
    quantization_args,
    to_vllm_args,
)

NAME_CHARS = 48
ANY_MACHINE = Resources()


@dataclass(frozen=True)
class AdapterLimits:
    """The limits of model servers that serve adapters. At most ``at_once`` adapters compute together; ``kept`` stay in memory."""

    max_rank: int = 64
    at_once: int = 8
    kept: int = 32

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            "--enable-lora",
            *("--max-lora-rank", str(self.max_rank)),
            *("--max-loras", str(self.at_once)),
            *("--max-cpu-loras", str(max(self.kept, self.at_once))),
        )


@dataclass(frozen=True)
class EngineOptions:
    """The options with which this platform starts model servers."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    cache_dir: Path | None = None
    cache_bytes: int = 0
    recipes: RecipePolicy = NO_RECIPES
    adapters: AdapterLimits = AdapterLimits()


def deployment_name(key: str) -> str:
    """Return a DNS label of at most 63 characters, unique for the submission, or for its version beside."""
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower())[:NAME_CHARS].strip("-")
    return f"m-{slug}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def is_remote(artifact_uri: str) -> bool:
    """Return whether a model server needs URLs to open the artifact."""
    return urlsplit(artifact_uri).scheme != "file"


def model_server_spec(
    key: str,
    run: int,
    artifact_uri: str,
    max_model_tokens: int,
    engine: EngineOptions,
    urls: Mapping[str, str],
    artifact_bytes: int,
    quantization: Quantization | None = None,
    recipe: Recipe | None = None,
    resources: Resources = ANY_MACHINE,
    has_adapters: bool = False,
) -> DeploymentSpec:
    """The server is named after the ``key``. Another run has another spec, so that a redeploy gets a fresh server; other ``urls`` make no other."""
    submission_id = submission_of(key)
    return DeploymentSpec(
        name=deployment_name(key),
        command=(
            *engine.command,
            *("--artifact", artifact_uri),
            *(_cache_arguments(engine) if is_remote(artifact_uri) else ()),
            *("--name", submission_id),
            *("--host", "{host}"),
            *("--port", "{port}"),
            *_model_arguments(max_model_tokens, quantization, recipe),
            *(engine.adapters.arguments if has_adapters else ()),
            *engine.args,
        ),
        environment={**(recipe.environment if recipe else {}), "GUANACO_RUN": str(run)},
        secrets={URLS_VARIABLE: json.dumps(dict(urls))} if urls else {},
        resources=resources,
        artifact_bytes=artifact_bytes,
        submission_id=submission_id,
    )


def _model_arguments(
    max_model_tokens: int, quantization: Quantization | None, recipe: Recipe | None
) -> tuple[str, ...]:
    """Return the model's arguments. The quantization is the deployment's, because a quantized model is measured unquantized first."""
    if recipe is not None:
        return to_vllm_args(recipe.model_copy(update={"quantization": quantization}))
    return ("--max-model-len", str(max_model_tokens), *quantization_args(quantization))


def _cache_arguments(engine: EngineOptions) -> tuple[str, ...]:
    if engine.cache_dir is None or engine.cache_bytes == 0:
        return ()
    return ("--cache-dir", str(engine.cache_dir), "--cache-bytes", str(engine.cache_bytes))


class RecipeChooser:
    def __init__(
        self, store: ArtifactStore, configs: ArtifactConfigs, policy: RecipePolicy
    ) -> None:
        self._store = store
        self._configs = configs
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
        """Choose the recipe; None without GPUs. Raises NoRecipe, NoSuchGpu, or the error of a config that must be understood."""
        if not self._policy.has_gpus:
            return None
        override = override or NO_OVERRIDE
        needs = self._policy.needs(max_model_tokens)
        config = await self._configs.read(artifact_key, "config.json")
        manifest = await self._store.find(artifact_key)
        stored_bytes = manifest.tensors_bytes if manifest else 0
        try:
            shape = read_shape(config)
        except (UnsupportedArchitecture, CorruptConfig):
            if override.gpu is None or (override.gpus or override.tensor_parallel) is None:
                raise
            gpu = self._policy.fleet.named(override.gpu)
            return pinned(gpu, needs, override, quantization, stored_bytes)
        model = Model(submission_id, shape, stored_bytes or None, quantization)
        return choose(model, needs, self._policy.fleet, override)

    def resources(self, recipe: Recipe | None) -> Resources:
        return to_resources(recipe, self._policy) if recipe else Resources()


def to_resources(recipe: Recipe, policy: RecipePolicy) -> Resources:
    """Return the resources that the recipe needs of each machine."""
    machine = recipe.machine
    return Resources(
        memory_bytes=machine.memory_bytes if machine else None,
        disk_bytes=machine.disk_bytes if machine else None,
        cpus=machine.cpus if machine else None,
        shared_memory_bytes=machine.shared_memory_bytes if machine else None,
        cache_bytes=machine.cache_bytes if machine else None,
        gpu_type=recipe.gpu_type,
        gpu_count=recipe.gpu_count // recipe.nodes,
        image=policy.images.get(recipe.image),
        nodes=recipe.nodes,
    )
