"""Routes about the costs of GPUs: all for an admin, a submission's own for its developer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from guanaco.accounts import Role
from guanaco.costs import Costs, SubmissionCost
from guanaco.forms import Moment
from guanaco.submissions import Submission
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.costs.service import CostService
from guanaco_server.http.routes import Routes

RequireVisible = Callable[[Account, str], Awaitable[Submission]]


def router(costs: CostService, require_visible: RequireVisible, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["costs"])
    admin = auth.require(Role.ADMIN)
    developer = auth.require(Role.DEVELOPER)

    @routes.get("/costs")
    async def read_costs(
        since: Moment | None = None,
        until: Moment | None = None,
        account: Account = admin,
    ) -> Costs:
        return await costs.costs(_utc(since), _utc(until))

    @routes.get("/submissions/{submission_id}/cost")
    async def read_cost(submission_id: str, account: Account = developer) -> SubmissionCost:
        submission = await require_visible(account, submission_id)
        return await costs.of_submission(submission.id, submission.developer, submission.created_at)

    return routes


def _utc(at: datetime | None) -> datetime | None:
    """Months begin at midnight UTC."""
    return None if at is None else at.astimezone(UTC)
