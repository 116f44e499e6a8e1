"""Calls about GPUs: which ones serve a submission, how many some traffic needs, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from guanaco.calls.wire import Call, get, hub_token_header, of_submission, post, put
from guanaco.costs import Costs, SubmissionCost
from guanaco.plans import PlanComparison, PlanRequest
from guanaco.recipes import RecipeOverride, RecipeStatus

PLAN_TIMEOUT_S = 180.0  # longer than the server takes at most, its queue included


def plan(request: PlanRequest, *, hub_token: str | None = None) -> Call[PlanComparison]:
    """Estimate what some traffic needs: GPUs, replicas and money, for each type of GPU.

    Args:
        request: The model and its traffic.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The PlanComparison.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    called = post("/plans", PlanComparison, request, timeout_s=PLAN_TIMEOUT_S)
    return replace(called, headers=hub_token_header(hub_token), is_repeatable=True)


def recipe(submission_id: str) -> Call[RecipeStatus]:
    """Return which GPUs serve a submission and how, and what an admin has set.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The RecipeStatus.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return get(of_submission(submission_id, "recipe"), RecipeStatus)


def set_recipe(submission_id: str, override: RecipeOverride) -> Call[RecipeStatus]:
    """Set parts of a submission's recipe from the next redeploy on; an empty override leaves all to the platform again. Admin.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        override: The parts of the recipe that are set.

    Returns:
        The RecipeStatus.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return put(f"{of_submission(submission_id, 'recipe')}", RecipeStatus, override)


def cost(submission_id: str) -> Call[SubmissionCost]:
    """Read what a submission's GPUs have cost so far.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The SubmissionCost.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return get(of_submission(submission_id, "cost"), SubmissionCost)


def costs(*, since: datetime | None = None, until: datetime | None = None) -> Call[Costs]:
    """Read what all GPUs have cost: this calendar month, unless told otherwise. Admin.

    Args:
        since: The first moment that counts.
        until: The first moment that does not.

    Returns:
        The Costs.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    times = {"since": since, "until": until}
    params = {name: at.isoformat() for name, at in times.items() if at is not None}
    return get("/costs", Costs, params=params)
