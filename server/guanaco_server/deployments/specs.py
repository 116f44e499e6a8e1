"""From a submission to the process that serves it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from guanaco.recipes import Recipe
from guanaco.submissions import Quantization
from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.engine.artifact_source import URLS_VARIABLE
from guanaco_server.recipes.policy import NO_RECIPES, RecipePolicy
from guanaco_server.recipes.vllm_args import quantization_args, to_vllm_args

NAME_CHARS = 48
ANY_MACHINE = Resources()


@dataclass(frozen=True)
class EngineOptions:
    """How this platform starts model servers."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    cache_dir: Path | None = None
    cache_bytes: int = 0
    recipes: RecipePolicy = NO_RECIPES


def deployment_name(submission_id: str) -> str:
    """A DNS label of at most 63 characters, different for different submissions."""
    slug = re.sub(r"[^a-z0-9]+", "-", submission_id.lower())[:NAME_CHARS].strip("-")
    return f"m-{slug}-{hashlib.sha256(submission_id.encode()).hexdigest()[:8]}"


def is_remote(artifact_uri: str) -> bool:
    """Whether a model server needs URLs to open it."""
    return urlsplit(artifact_uri).scheme != "file"


def model_server_spec(
    submission_id: str,
    run: int,
    artifact_uri: str,
    max_model_tokens: int,
    engine: EngineOptions,
    urls: Mapping[str, str],
    quantization: Quantization | None = None,
    recipe: Recipe | None = None,
    resources: Resources = ANY_MACHINE,
) -> DeploymentSpec:
    """Another run has another spec, so that a redeploy gets a fresh server; other ``urls`` make no other."""
    return DeploymentSpec(
        name=deployment_name(submission_id),
        command=(
            *engine.command,
            *("--artifact", artifact_uri),
            *(_cache_arguments(engine) if is_remote(artifact_uri) else ()),
            *("--name", submission_id),
            *("--host", "{host}"),
            *("--port", "{port}"),
            *_model_arguments(max_model_tokens, quantization, recipe),
            *engine.args,
        ),
        environment={**(recipe.environment if recipe else {}), "GUANACO_RUN": str(run)},
        secrets={URLS_VARIABLE: json.dumps(dict(urls))} if urls else {},
        resources=resources,
        submission_id=submission_id,
    )


def _model_arguments(
    max_model_tokens: int, quantization: Quantization | None, recipe: Recipe | None
) -> tuple[str, ...]:
    """The deployment says how it is quantized now: a quantized one is measured unquantized first."""
    if recipe is not None:
        return to_vllm_args(recipe.model_copy(update={"quantization": quantization}))
    return ("--max-model-len", str(max_model_tokens), *quantization_args(quantization))


def _cache_arguments(engine: EngineOptions) -> tuple[str, ...]:
    if engine.cache_dir is None or engine.cache_bytes == 0:
        return ()
    return ("--cache-dir", str(engine.cache_dir), "--cache-bytes", str(engine.cache_bytes))
