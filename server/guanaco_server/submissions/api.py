"""Submissions over HTTP. A submission's developer may read its recipe; an admin may set it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from pydantic import SecretStr

from guanaco.accounts import Role
from guanaco.aliases import MAX_TAGS, Alias, TagChanges
from guanaco.cards import ModelCard
from guanaco.checks import RepoCheck
from guanaco.forms import Slug
from guanaco.plans import PlanComparison, PlanRequest
from guanaco.quotas import Quota, QuotaOverride
from guanaco.recipes import RecipeOverride, RecipeStatus
from guanaco.submissions import (
    EventKind,
    PublicPageRequest,
    RedeployRequest,
    StressReport,
    Submission,
    SubmissionEvent,
    SubmissionRequest,
)
from guanaco.sweeps import Sweep, SweepRequest
from guanaco.trials import PromptTrial, RenderedPrompt
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.http.openapi import event_schema
from guanaco_server.http.routes import Routes
from guanaco_server.http.sse import EVENT_STREAM, event_stream
from guanaco_server.submissions.pipeline.checks.repo import RepoChecks
from guanaco_server.submissions.pipeline.traffic_plans import TrafficPlans
from guanaco_server.submissions.prompt_trials import PromptTrials
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.runs.events import EventFeed, encoded
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.submissions.sweeps.service import SweepService

MAX_SEQ = 2**31 - 1  # what the database's integer holds

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=128)]
HubToken = Annotated[
    SecretStr | None,
    Header(
        alias="X-Hub-Token",
        description="Your own Hub token, for a private or gated repo; encrypted, and deleted when the weights are serialized.",
    ),
]
EVENTS: dict[str, Any] = {
    "content": {EVENT_STREAM: {"schema": event_schema(dict.fromkeys(EventKind, SubmissionEvent))}}
}
LastEventId = Annotated[int, Header(ge=0, le=MAX_SEQ)]


def router(submissions: SubmissionService, feed: EventFeed, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/submissions", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)

    @routes.post("", status_code=202)
    async def submit(
        request: SubmissionRequest,
        idempotency_key: IdempotencyKey = None,
        hub_token: HubToken = None,
        account: Account = developer,
    ) -> Submission:
        return await submissions.submit(account, request, idempotency_key, hub_token)

    @routes.get("")
    async def list_submissions(
        tag: Annotated[list[Slug], Query(max_length=MAX_TAGS)] = [],  # noqa: B006 - FastAPI's way
        account: Account = developer,
    ) -> list[Submission]:
        """The caller's own, newest first; `?tag=`, once or more often, for those that have all these tags."""
        return await submissions.list_own(account, tag)

    @routes.get("/{submission_id}")
    async def read_submission(submission_id: str, account: Account = developer) -> Submission:
        return await submissions.require_visible(account, submission_id)

    @routes.get(
        "/{submission_id}/events", response_class=StreamingResponse, responses={200: EVENTS}
    )
    async def follow_events(
        submission_id: str,
        last_event_id: LastEventId = 0,
        follow: bool = True,
        account: Account = developer,
    ) -> StreamingResponse:
        await submissions.ensure_visible(account, submission_id)
        return event_stream(encoded(feed.follow(submission_id, last_event_id, wait=follow)))

    @routes.get("/{submission_id}/card")
    async def read_card(submission_id: str, account: Account = developer) -> ModelCard:
        """Return the repo's README.md, Markdown that a stranger wrote, with its licence and base models."""
        return (await submissions.card(account, submission_id)).public

    @routes.put("/{submission_id}/tags")
    async def set_tags(
        submission_id: str, changes: TagChanges, account: Account = developer
    ) -> Submission:
        return await submissions.set_tags(account, submission_id, changes.tags)

    @routes.put("/{submission_id}/public-page")
    async def set_public_page(
        submission_id: str, request: PublicPageRequest, account: Account = developer
    ) -> Submission:
        return await submissions.show_prompt(account, submission_id, request.show_prompt)

    @routes.put("/{submission_id}/aliases/{alias}")
    async def set_alias(submission_id: str, alias: Slug, account: Account = developer) -> Alias:
        """Call the submission so from now on. Another one of its repo loses the alias at the same moment."""
        return await submissions.aliases.set(account, submission_id, alias)

    @routes.delete("/{submission_id}/aliases/{alias}", status_code=204)
    async def remove_alias(submission_id: str, alias: Slug, account: Account = developer) -> None:
        await submissions.aliases.remove(account, submission_id, alias)

    @routes.get("/{submission_id}/stress")
    async def read_stress_report(submission_id: str, account: Account = developer) -> StressReport:
        return await submissions.stress_report(account, submission_id)

    @routes.post("/{submission_id}/cancel")
    async def cancel(submission_id: str, account: Account = developer) -> Submission:
        return await submissions.cancel(account, submission_id)

    @routes.post("/{submission_id}/deactivate")
    async def deactivate(submission_id: str, account: Account = developer) -> Submission:
        return await submissions.deactivate(account, submission_id)

    @routes.post("/{submission_id}/reactivate")
    async def reactivate(submission_id: str, account: Account = developer) -> Submission:
        return await submissions.reactivate(account, submission_id)

    @routes.post("/{submission_id}/redeploy", status_code=202)
    async def redeploy(
        submission_id: str,
        request: RedeployRequest | None = None,
        hub_token: HubToken = None,
        account: Account = developer,
    ) -> Submission:
        return await submissions.redeploy(
            account, submission_id, hub_token, request or RedeployRequest()
        )

    @routes.post("/{submission_id}/rollback", status_code=202)
    async def rollback(submission_id: str, account: Account = developer) -> Submission:
        """End the redeploy that is under way, or bring back the version that the last one replaced."""
        return await submissions.rollouts.rollback(account, submission_id)

    @routes.delete("/{submission_id}")
    async def delete(submission_id: str, account: Account = developer) -> Submission:
        """Delete a submission that failed or was cancelled before it was ever live."""
        return await submissions.delete(account, submission_id)

    @routes.post("/{submission_id}/teardown")
    async def teardown(submission_id: str, account: Account = developer) -> Submission:
        return await submissions.teardown(account, submission_id)

    return routes


def sweep_router(sweeps: SweepService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/sweeps", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)

    @routes.post("", status_code=202)
    async def submit_sweep(
        request: SweepRequest,
        idempotency_key: IdempotencyKey = None,
        hub_token: HubToken = None,
        account: Account = developer,
    ) -> Sweep:
        """Enter all variants, or none. The same Idempotency-Key with the same request returns the same sweep, for good."""
        return await sweeps.submit(account, request, idempotency_key, hub_token)

    @routes.get("")
    async def list_sweeps(account: Account = developer) -> list[Sweep]:
        """The caller's 100 newest."""
        return await sweeps.list_own(account)

    @routes.get("/{sweep_id}")
    async def read_sweep(sweep_id: str, account: Account = developer) -> Sweep:
        return await sweeps.get(account, sweep_id)

    @routes.post("/{sweep_id}/cancel")
    async def cancel_sweep(sweep_id: str, account: Account = developer) -> Sweep:
        """Cancel those of its submissions that are in progress."""
        return await sweeps.cancel(account, sweep_id)

    @routes.post("/{sweep_id}/deactivate")
    async def deactivate_sweep(sweep_id: str, account: Account = developer) -> Sweep:
        return await sweeps.deactivate(account, sweep_id)

    @routes.post("/{sweep_id}/reactivate")
    async def reactivate_sweep(sweep_id: str, account: Account = developer) -> Sweep:
        return await sweeps.reactivate(account, sweep_id)

    @routes.post("/{sweep_id}/teardown")
    async def teardown_sweep(sweep_id: str, account: Account = developer) -> Sweep:
        """Tear down those of its submissions that are served."""
        return await sweeps.teardown(account, sweep_id)

    return routes


def alias_router(submissions: SubmissionService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)

    @routes.get("/aliases")
    async def list_aliases(account: Account = developer) -> list[Alias]:
        """The caller's own, by name. An alias stands in a path wherever a submission's id can."""
        return await submissions.aliases.list_own(account)

    return routes


def trial_router(trials: PromptTrials, plans: TrafficPlans, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)

    @routes.post("/prompts/render")
    async def render_prompt(trial: PromptTrial, account: Account = developer) -> RenderedPrompt:
        """The prompt that a model would get of a conversation; no model is asked, and nothing is stored."""
        return await trials.render(account, trial)

    @routes.post("/plans")
    async def plan_traffic(
        request: PlanRequest, hub_token: HubToken = None, account: Account = developer
    ) -> PlanComparison:
        """Estimate what some traffic needs, for each type of GPU; of a repo only configs and headers are read."""
        return await plans.compare(account, request, hub_token)

    return routes


def check_router(checks: RepoChecks, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)

    @routes.post("/checks")
    async def check_repo(
        request: SubmissionRequest, hub_token: HubToken = None, account: Account = developer
    ) -> RepoCheck:
        """All checks of the first two stages; nothing is submitted. It answers when they are done."""
        return await checks.check(account, request, hub_token)

    return routes


def quota_router(quotas: QuotaService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["accounts"])
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.get("/quota")
    async def read_own_quota(account: Account = developer) -> Quota:
        return await quotas.quota_of(account)

    @routes.get("/accounts/{name}/quota", dependencies=[admin])
    async def read_quota(name: str) -> Quota:
        return await quotas.quota_named(name)

    @routes.put("/accounts/{name}/quota")
    async def set_quota(name: str, override: QuotaOverride, account: Account = admin) -> Quota:
        return await quotas.set(name, override, account)

    return routes


def recipe_router(submissions: SubmissionService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/submissions", tags=["submissions"])
    developer = auth.require(Role.DEVELOPER)
    admin = auth.require(Role.ADMIN)

    @routes.get("/{submission_id}/recipe")
    async def read_recipe(submission_id: str, account: Account = developer) -> RecipeStatus:
        submission = await submissions.require_visible(account, submission_id)
        return await submissions.recipes.status(submission.id)

    @routes.put("/{submission_id}/recipe")
    async def set_recipe(
        submission_id: str, override: RecipeOverride, account: Account = admin
    ) -> RecipeStatus:
        submission = await submissions.require_visible(account, submission_id)
        return await submissions.recipes.set(submission, override)

    return routes
