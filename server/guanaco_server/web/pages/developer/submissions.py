"""Submissions: one's own as a list, and each one's page: everything for its developer, the public facts for the public."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.competitions import OPEN, Competition
from guanaco.errors import CardNotFound, ReportNotFound, SubmissionNotFound
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco.submissions import Status, StressReport, Submission
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.http.routes import Routes
from guanaco_server.runtime import threads
from guanaco_server.submissions.runs.events import LogFilter
from guanaco_server.submissions.service import SubmissionFilter
from guanaco_server.web import share_card
from guanaco_server.web.access.guards import Member
from guanaco_server.web.access.viewer import Viewer
from guanaco_server.web.pages.developer.submission_log import log_view
from guanaco_server.web.pages.leaderboard import CompetitionId, PageNumber, SearchText
from guanaco_server.web.rendering import SECURITY_HEADERS, see_other
from guanaco_server.web.room import WebRoom
from guanaco_server.web.share_card import ShareCard
from guanaco_server.web.views import charts, trends
from guanaco_server.web.views import lifecycle as lifecycle_view
from guanaco_server.web.views.boards import shared_ranks
from guanaco_server.web.views.metric_tiles import LEAD_METRICS, OTHER_METRICS, tiles_of
from guanaco_server.web.views.model_card import card_html
from guanaco_server.web.views.neighbours import sentences_of
from guanaco_server.web.views.trends import scale_of
from guanaco_server.web.words import count

ROWS = 50
CARD_HEADERS = SECURITY_HEADERS | {
    "Cache-Control": "public, max-age=300",
    "Cross-Origin-Resource-Policy": "cross-origin",  # it is made to be shown elsewhere
}

Statuses = Annotated[list[Status | Literal[""]], Query(max_length=len(Status))]


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)

    @routes.get("/submissions")
    async def list_submissions(
        request: Request,
        status: Statuses = [],  # noqa: B006 - never changed
        q: SearchText = "",
        page: PageNumber = 1,
        member: Member = developer,
    ) -> Response:
        chosen = tuple(Status(name) for name in status if name)
        only = SubmissionFilter(chosen, q)
        rows, total = await web.submissions.page(member.account, page, ROWS, only)
        board = await web.boards.board(OPEN)
        return web.pages.show(
            request,
            "submissions.html",
            rows=rows,
            ranked={row.submission_id: row for row in board.rows},
            total=total,
            page=page,
            pages=max(1, -(-total // ROWS)),
            chosen=chosen,
            statuses=list(Status),
            query=q,
            interval=charts.interval,
            shared=shared_ranks(board),
        )

    @routes.get("/submissions/{submission_id}")
    async def read_submission(
        request: Request,
        submission_id: str,
        competition: CompetitionId = OPEN,
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        if viewer.account is not None and viewer.is_developer:
            try:
                found = await web.submissions.require_visible(viewer.account, submission_id)
            except SubmissionNotFound:
                return await _public(web, request, submission_id, chosen)
            return await _full(web, request, viewer, found, chosen)
        return await _public(web, request, submission_id, chosen)

    @routes.post("/submissions/{submission_id}/public-page")
    async def change_public_page(submission_id: str, member: Member = developer) -> Response:
        is_shown = member.fields.get("show_prompt") == "yes"
        await web.submissions.show_prompt(member.account, submission_id, is_shown)
        return see_other(f"/submissions/{submission_id}#parameters")

    @routes.get("/submissions/{submission_id}/card.png")
    async def read_card(
        submission_id: str,
        competition: CompetitionId = OPEN,
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        row = await web.boards.row(chosen.id, submission_id)
        card = _card_of(row, chosen, await web.boards.board(chosen.id))
        picture = await threads.PAGES.run(share_card.draw, card)
        return Response(picture, media_type="image/png", headers=CARD_HEADERS)

    @routes.get("/submissions/{org}/{model}@{name}")
    async def find_by_alias(
        org: str, model: str, name: str, viewer: Viewer = web.guards.public()
    ) -> Response:
        alias = f"{org}/{model}@{name}"
        found = await web.submissions.aliases.resolve(viewer.account, alias)
        return see_other(f"/submissions/{found}")


def _card_of(row: LeaderboardRow, competition: Competition, board: Leaderboard) -> ShareCard:
    scale = scale_of(board)
    rank = f"Rank {row.rank} in {competition.name}" if row.rank else competition.name
    rank = f"Shared {rank[0].lower()}{rank[1:]}" if row.rank in shared_ranks(board) else rank
    votes = row.thumbs_up + row.thumbs_down
    if row.score is None:
        score = f"{rank}: not judged by enough people yet"
    elif scale.is_votes:
        score = f"{rank}: {scale.show(row.score)} thumbs up from {count(votes)} users"
    else:
        score = f"{rank}: score {scale.show(row.score)} from {count(votes)} users"
    if row.duels:
        score += f" and {count(row.duels)} duels"
    shape = scale.interval(row)
    shares = (shape.low / 100, shape.at / 100, shape.high / 100) if shape else None
    return ShareCard(row.name, f"by {row.developer}", score.replace("\u202f", " "), shares)


async def _public(
    web: WebRoom, request: Request, submission_id: str, competition: Competition
) -> Response:
    row = await web.boards.row(competition.id, submission_id)
    board = await web.boards.board(competition.id)
    scale = scale_of(board)
    return web.pages.show(
        request,
        "submission_public.html",
        row=row,
        competition=competition,
        shared=shared_ranks(board),
        scale=scale,
        trend=trends.score_trend(await trends.past_of(web.history, board, row), scale),
        neighbours=await sentences_of(web.stability, competition, row),
        quotes=await web.ratings.quotes(row.submission_id),
        prompt=await web.submissions.public_prompt(row.submission_id),
        may_chat=web.chat.may_choose_models and row.status is Status.DEPLOYED,
        base_url=str(request.base_url).rstrip("/"),
    )


async def _full(
    web: WebRoom, request: Request, viewer: Viewer, submission: Submission, competition: Competition
) -> Response:
    assert viewer.account is not None
    holding = submission.id if submission.status is Status.DEPLOYED else None
    board = await web.boards.board(competition.id, holding)
    row = next((row for row in board.rows if row.submission_id == submission.id), None)
    scale = scale_of(board)
    report = await _report(web, viewer, submission.id)
    return web.pages.show(
        request,
        "submission.html",
        submission=submission,
        timeline=lifecycle_view.timeline(submission, web.clock.now()),
        actions=lifecycle_view.actions_of(submission),
        row=row,
        competition=competition,
        competitions=await web.competitions.list_all(),
        shared=shared_ranks(board),
        scale=scale,
        lead_tiles=tiles_of(row, LEAD_METRICS) if row else [],
        more_tiles=tiles_of(row, OTHER_METRICS) if row else [],
        trends=trends.trends_of(await trends.past_of(web.history, board, row), scale),
        neighbours=await sentences_of(web.stability, competition, row),
        report=report,
        ttft=charts.histogram(report.ttft_histogram, report.ttft_ms) if report else None,
        tpot=charts.histogram(report.tpot_histogram, report.tpot_ms) if report else None,
        card=await _card(web, viewer, submission.id),
        card_html=card_html,
        log=await log_view(web, submission.id, LogFilter()),
        cost=await web.costs.of_submission(
            submission.id, submission.developer, submission.created_at
        ),
        waits_for=await web.deployments.waits_for(submission.id),
        base_url=str(request.base_url).rstrip("/"),
    )


async def _card(web: WebRoom, viewer: Viewer, submission_id: str) -> StoredCard | None:
    assert viewer.account is not None
    try:
        return await web.submissions.card(viewer.account, submission_id)
    except CardNotFound:
        return None


async def _report(web: WebRoom, viewer: Viewer, submission_id: str) -> StressReport | None:
    assert viewer.account is not None
    try:
        return await web.submissions.stress_report(viewer.account, submission_id)
    except ReportNotFound:
        return None
