"""Keeps what an admin has set for a submission's recipe, which takes effect with the next redeploy."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.contract import carry_unknown_fields
from guanaco.errors import SubmissionNotFound
from guanaco.recipes import Recipe, RecipeOverride, RecipeStatus
from guanaco.submissions import EventKind, GenerationParams, Submission, SubmissionKind
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle, queries

TEMPLATE_TOKENS = 8  # room for special tokens that vLLM may add to a prompt


class RecipeService:
    def __init__(self, database: Database, clock: Clock, deployments: DeploymentService) -> None:
        self._database = database
        self._clock = clock
        self._deployments = deployments

    async def status(self, submission_id: str) -> RecipeStatus:
        async with self._database.read() as session:
            row = await queries.by_id(session, submission_id)
            if row is None:
                raise SubmissionNotFound(submission_id)
        served = await self._deployments.served_recipe(submission_id)
        return RecipeStatus(submission_id=row.id, override=row.recipe_override, served=served)

    async def set(self, submission: Submission, override: RecipeOverride) -> RecipeStatus:
        """NoSuchGpu, or NoRecipe where the artifact is there and cannot be served so. An empty override takes it back."""
        wanted = None if override == RecipeOverride() else override
        if wanted is not None:
            await self._check(submission, wanted)

        async def set_recipe(session: AsyncSession) -> None:
            row = await queries.by_id(session, submission.id)
            if row is None:
                raise SubmissionNotFound(submission.id)
            before = row.recipe_override
            row.recipe_override = (
                carry_unknown_fields(before, wanted) if before and wanted else wanted
            )
            await lifecycle.append_event(
                session, submission.id, EventKind.LOG, _describe(wanted), at=self._clock.now()
            )

        await self._database.write_unit(set_recipe)
        return await self.status(submission.id)

    async def _check(self, submission: Submission, override: RecipeOverride) -> None:
        self._deployments.recipes.check(override)
        if submission.artifact_key is None:
            return
        await self._deployments.recipes.choose(
            submission.id,
            submission.artifact_key,
            max_model_tokens(submission.params, submission.kind),
            submission.quantization,
            override,
        )


def max_model_tokens(params: GenerationParams, kind: SubmissionKind = SubmissionKind.CHAT) -> int:
    """Return how many tokens the model server must have room for: prompt and reply. A reward model cuts longer texts."""
    if kind is SubmissionKind.REWARD:
        return params.max_input_tokens
    return params.max_input_tokens + params.max_output_tokens + TEMPLATE_TOKENS


def describe(recipe: Recipe) -> str:
    """``8 GPUs of the type MI325X, tensor parallel 8, expert parallel 8``."""
    parts = [
        f"{recipe.gpu_count} GPU{'s' if recipe.gpu_count > 1 else ''} of the type {recipe.gpu_type}"
    ]
    if recipe.nodes > 1:
        parts.append(f"on {recipe.nodes} machines")
    for name in ("tensor_parallel", "data_parallel", "expert_parallel"):
        if (size := getattr(recipe, name)) > 1:
            parts.append(f"{name.replace('_', ' ')} {size}")
    return ", ".join(parts)


def _describe(override: RecipeOverride | None) -> str:
    if override is None:
        return "An admin has left the recipe to the platform again, from the next redeploy on."
    chosen = ", ".join(f"{k} {v}" for k, v in override.model_dump(mode="json").items() if v)
    return f"An admin has set the recipe, from the next redeploy on: {chosen}."
