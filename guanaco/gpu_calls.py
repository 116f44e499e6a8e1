"""The calls about GPUs: a submission's recipe, and what GPUs cost. As calls.py, which has all others."""

from __future__ import annotations

from datetime import datetime

from guanaco.calls import API, _get, _of
from guanaco.contract import reader
from guanaco.costs import Costs, SubmissionCost
from guanaco.recipes import RecipeOverride, RecipeStatus
from guanaco.wire import Call


def recipe(submission_id: str) -> Call[RecipeStatus]:
    """Which GPUs serve a submission and how, and what an admin has set."""
    return _get(_of(submission_id, "recipe"), parse=reader(RecipeStatus).from_json)


def set_recipe(submission_id: str, override: RecipeOverride) -> Call[RecipeStatus]:
    """From the next redeploy on; an empty override leaves all to the platform again. Admin."""
    return Call(
        method="PUT",
        path=f"{API}{_of(submission_id, 'recipe')}",
        json=override.model_dump(mode="json"),
        parse=reader(RecipeStatus).from_json,
        is_repeatable=True,
    )


def cost(submission_id: str) -> Call[SubmissionCost]:
    """What a submission's GPUs have cost so far."""
    return _get(_of(submission_id, "cost"), parse=reader(SubmissionCost).from_json)


def costs(*, since: datetime | None = None, until: datetime | None = None) -> Call[Costs]:
    """What all GPUs have cost: this calendar month, unless told otherwise. Admin."""
    times = {"since": since, "until": until}
    params = {name: at.isoformat() for name, at in times.items() if at is not None}
    return _get("/costs", parse=reader(Costs).from_json, params=params)
