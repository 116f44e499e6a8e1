"""The operator's pages: what needs a look first, then deployments, users' erasure and the audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import AccountNotFound
from guanaco.feedback import ErasureRequest
from guanaco.submissions import PIPELINE_STATUSES, Status
from guanaco_server.deployments.deployment import replicas_of
from guanaco_server.http.routes import Routes
from guanaco_server.submissions.service import SubmissionFilter
from guanaco_server.web.access.guards import Member
from guanaco_server.web.pages.leaderboard import PageNumber, SearchText
from guanaco_server.web.room import WebRoom
from guanaco_server.web.views.activity import Period, activity_view

NEEDS_A_LOOK = ("restarting", "waiting")  # phases of a deployment
RECENT = 8
DEPLOYMENT_ROWS = 100
AUDIT_ROWS = 100


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)

    @routes.get("/admin")
    async def overview(
        request: Request, period: Period = "day", member: Member = admin
    ) -> Response:
        deployments = await web.deployments.list_wishes()
        failed, failures = await web.submissions.page(
            member.account, 1, RECENT, SubmissionFilter((Status.FAILED,))
        )
        return web.pages.show(
            request,
            "admin/overview.html",
            statuses=await web.submissions.catalog.count_by_status(),
            pipeline_statuses=PIPELINE_STATUSES,
            phases=Counter(row.phase.value for row in deployments),
            troubled=[row for row in deployments if row.phase.value in NEEDS_A_LOOK][:RECENT],
            failed=failed,
            failures=failures,
            oldest_queued=await web.submissions.catalog.oldest_queued(),
            period=period,
            activity=await activity_view(web.alerts, web.costs, web.clock.now(), period),
            currency=web.costs.currency,
            no_worker=await web.alerts.find_absence(),
        )

    @routes.get("/admin/deployments")
    async def list_deployments(
        request: Request, page: PageNumber = 1, member: Member = admin
    ) -> Response:
        rows = sorted(await web.deployments.list_wishes(), key=lambda row: row.submission_id)
        begin = (page - 1) * DEPLOYMENT_ROWS
        return web.pages.show(
            request,
            "admin/deployments.html",
            rows=rows[begin : begin + DEPLOYMENT_ROWS],
            replicas_of=replicas_of,
            total=len(rows),
            page=page,
            pages=max(1, -(-len(rows) // DEPLOYMENT_ROWS)),
            no_worker=await web.alerts.find_absence(),
        )

    @routes.get("/admin/users")
    async def show_erasure(request: Request, member: Member = admin) -> Response:
        return _erasure(web, request, {})

    @routes.post("/admin/users/erase")
    async def erase(request: Request, member: Member = admin) -> Response:
        user_id = member.fields.get("user_id", "").strip()
        if not user_id or user_id != member.fields.get("again", "").strip():
            problem = "The two ids are not the same. Type the id twice: this is final."
            return _erasure(web, request, member.fields, problem)
        backend = member.fields.get("backend", "").strip() or None
        erasure = ErasureRequest(user_id=user_id, account=backend)
        try:
            erased = await web.erasures.erase(member.account, erasure)
        except AccountNotFound as error:
            return _erasure(web, request, member.fields, error.detail)
        return web.pages.show(request, "admin/users.html", erased=erased, fields={}, problem=None)

    @routes.get("/admin/audit")
    async def read_audit(
        request: Request, cursor: SearchText = "", member: Member = admin
    ) -> Response:
        found = await web.audit.list(AUDIT_ROWS, cursor or None)
        return web.pages.show(request, "admin/audit.html", found=found, is_first=not cursor)


def _erasure(
    web: WebRoom, request: Request, fields: Mapping[str, str], problem: str | None = None
) -> Response:
    """The second id is never filled in again: it is typed on purpose."""
    status = 422 if problem else 200
    return web.pages.show(
        request, "admin/users.html", status=status, erased=None, fields=fields, problem=problem
    )
