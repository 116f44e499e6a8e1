"""HTTP in front of the platform: routes, errors and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from guanaco import __version__
from guanaco.accounts import Role
from guanaco_server.accounts import api as accounts_api
from guanaco_server.alerts import api as alerts_api
from guanaco_server.assembly.platform import Platform
from guanaco_server.assembly.rooms import Rooms
from guanaco_server.characters import api as characters_api
from guanaco_server.chat import api as chat_api
from guanaco_server.chat.gateway.routes import ChatGateway, ReplyRoute, reply_routes
from guanaco_server.compat import api as compat_api
from guanaco_server.competitions import api as competitions_api
from guanaco_server.costs import api as costs_api
from guanaco_server.duels import api as duels_api
from guanaco_server.duels.api import battle_route
from guanaco_server.experiments import api as experiments_api
from guanaco_server.feedback import api as feedback_api
from guanaco_server.http import api_document, health
from guanaco_server.http import errors as http_errors
from guanaco_server.http.api_document import ApiDocument
from guanaco_server.http.body_limit import MAX_BODY_BYTES, BodyLimit, BodyLimits
from guanaco_server.http.compression import CompressedPages
from guanaco_server.http.connections.front_door import AddressCount, DoorLimits, ProxiedRequests
from guanaco_server.http.fair_share import PROBES, FairShare
from guanaco_server.http.openapi import write_document
from guanaco_server.http.routes import add_routes
from guanaco_server.idempotency.requests import IdempotentRequests, keep_as_json, keeps_answers
from guanaco_server.leaderboard import api as leaderboard_api
from guanaco_server.notifications import api as notifications_api
from guanaco_server.observability.exposition import CONTENT_TYPE, Exposition
from guanaco_server.observability.http import Observed
from guanaco_server.openai import api as openai_api
from guanaco_server.routing import api as routing_api
from guanaco_server.settings import Settings
from guanaco_server.submissions import api as submissions_api
from guanaco_server.submissions.aliases.paths import AliasPaths
from guanaco_server.submissions.stored_prompts import api as stored_prompts_api
from guanaco_server.web.mounting import include_web

DESCRIPTION = """Submit chat models, let people talk to them, read what they think.

A key is sent as `Authorization: Bearer KEY`. It has one role: `developer`, `backend` or `admin`; an admin's key may do everything.

Every error has one form, in the schema `ErrorBody`: a stable code, a sentence for a person, and what to do next. Errors under `/v1` have OpenAI's form. Each answer has an `X-Request-ID`, which the platform's log lines have too: the request's own, or the
trace id of its `traceparent`, or a new one; and an `X-Trace-ID`, by which the operator finds its trace where traces are kept.
"""
TAGS = {
    "submissions": "A developer's models: submit one, follow its way to users, take it back.",
    "feedback": "Users' ratings and words about a model, anonymized.",
    "leaderboard": "Scores, and final rankings.",
    "competitions": "Competitions of submissions, and their rules.",
    "chat": "An app's conversations. Replies come whole or as server-sent events.",
    "prompts": "Stored prompts: versions that never change, and labels that submissions follow.",
    "characters": "Stored characters, which conversations can name. Character Cards go in and come out again.",
    "routing": "The choice of a submission for a new conversation.",
    "openai": "OpenAI's API, for its official clients.",
    "webhooks": "Be told of a submission's events.",
    "accounts": "Keys, quotas, the audit log.",
    "experiments": "A/B comparisons.",
    "costs": "What GPUs cost.",
    "alerts": "Conditions that the platform watches, and how well it keeps its promise.",
    "health": "For an operator's tools.",
    "old client": "The protocol of chai-guanaco 1.4.",
}
HEARTBEAT_S = (
    10  # longest silence of a stream: then a comment is sent, which keeps proxies from closing it
)


def create_app(platform: Platform, *, heartbeat_s: float = HEARTBEAT_S) -> FastAPI:
    app = GatewayedApp(
        title="Guanaco",
        version=__version__,
        summary="Submit chat models, read what people think of them.",
        docs_url=None,  # web/pages/reference.py: FastAPI's own asks another host for its scripts
        redoc_url=None,
        openapi_url=None,  # http/api_document.py: FastAPI writes and encodes it on the event loop
    )
    is_whole = platform.settings.role != "worker"
    app.state.api_document = ApiDocument(
        api_document.read_file if is_whole else lambda: app.openapi()
    )
    api_document.install(app, app.state.api_document)
    forms = http_errors.ErrorForms({openai_api.PREFIX: openai_api.ERRORS})
    limits = body_limits(platform.settings)
    app.add_middleware(CompressedPages)
    app.add_middleware(BodyLimit, limits=limits, forms=forms)
    http_errors.install(app, forms)
    app.add_middleware(Observed, metrics=platform.metrics, tracing=platform.adapters.tracing)
    _trust_proxies(app, platform.settings)
    app.proxied = ProxiedRequests(
        AddressCount(
            DoorLimits.of(platform.settings, MAX_BODY_BYTES).per_address,
            platform.settings.trusted_proxies,
        ),
        forms,
    )
    app.share = FairShare(forms, platform.metrics, lambda: platform.database.is_writing)
    if not is_whole:
        _include_operations(app, platform)
        _describe(app, platform, (), forms)
    else:
        answered = _install_gateway(app, platform, forms, heartbeat_s)
        _include_operations(app, platform)
        _include_routes(app, platform.rooms)
        _describe(app, platform, answered, forms)
    return app


def body_limits(settings: Settings) -> BodyLimits:
    """Return how large a request may be, by its path."""
    return BodyLimits(MAX_BODY_BYTES, {characters_api.PATH: settings.character_max_bytes})


def _trust_proxies(app: FastAPI, settings: Settings) -> None:
    """Take a client's address and scheme from X-Forwarded-For and -Proto where a trusted proxy set them."""
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))


class GatewayedApp(FastAPI):
    """The framework, and a gateway in front of it and of its middlewares.

    ``proxied`` limits what proxies pass on, and ``share`` how much the framework works on at once.
    """

    gateway: ASGIApp | None = None
    proxied: ProxiedRequests | None = None
    share: FairShare | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.gateway or self.framework
        if self.proxied is None or (client := self.proxied.client_of(scope)) is None:
            await app(scope, receive, send)
        else:
            await self.proxied.answer(client, app, scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = super().__call__
        if self.share is None or scope["type"] != "http" or scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        client = scope.get("client")
        proxied = self.proxied.client_of(scope) if self.proxied is not None else None
        address = proxied or (client[0] if client else "")
        await self.share.answer(address, app, scope, receive, send)


def _install_gateway(
    app: GatewayedApp, platform: Platform, forms: http_errors.ErrorForms, heartbeat_s: float
) -> tuple[ReplyRoute, ...]:
    """Put the routes that answer with a reply in front of the framework, and return them."""
    rooms = platform.rooms
    routes = (
        *reply_routes(
            rooms.chat.replies, rooms.chat.previews, rooms.duels.regenerations.regenerate
        ),
        battle_route(rooms.duels.battles),
        *openai_api.completion_routes(rooms.openai.service),
    )
    gateway = ChatGateway(
        app.framework,
        routes,
        rooms.accounts.auth,
        platform.metrics,
        platform.adapters.tracing,
        MAX_BODY_BYTES,
        heartbeat_s,
    )
    by_alias = AliasPaths(
        gateway,
        rooms.submissions.service.aliases.resolve,
        rooms.accounts.accounts.authenticate,
        forms,
    )
    answered_once = IdempotentRequests(
        by_alias,
        rooms.idempotency.service,
        rooms.accounts.accounts.authenticate,
        platform.metrics,
        body_limits(platform.settings),
        forms,
    )
    app.gateway = _open_to_browsers(answered_once, platform.settings)
    return routes


def _open_to_browsers(app: ASGIApp, settings: Settings) -> ASGIApp:
    """Let the pages of the configured origins call the API. They send a key, never the web pages' cookies."""
    if not settings.cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        allow_headers=(
            "Authorization",
            "Content-Type",
            "Idempotency-Key",
            "Last-Event-ID",
            "X-Hub-Token",
            "X-Request-ID",
            "traceparent",
        ),
        expose_headers=(
            "Idempotent-Replayed",
            "Retry-After",
            "X-Next-Cursor",
            "X-Request-ID",
            "X-Trace-ID",
        ),
    )


def _describe(
    app: FastAPI,
    platform: Platform,
    answered: Sequence[ReplyRoute],
    forms: http_errors.ErrorForms,
) -> None:
    """Have the app write its OpenAPI document of its own routes and of those that the gateway answers: for `make docs`, and a worker's few."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            further = [route.described(platform.rooms.accounts.auth) for route in answered]
            app.openapi_schema = write_document(
                app,
                [*app.routes, *further],
                forms,
                description=DESCRIPTION,
                tags=TAGS,
                honours_keys=keeps_answers,
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _include_routes(app: FastAPI, rooms: Rooms) -> None:
    auth = rooms.accounts.auth
    submissions, chat = rooms.submissions, rooms.chat
    leaderboard, feedback = rooms.leaderboard, rooms.feedback
    routers = (
        accounts_api.router(rooms.accounts.accounts, rooms.accounts.audit, auth),
        submissions_api.router(submissions.service, submissions.events, auth),
        submissions_api.sweep_router(submissions.sweeps, auth),
        submissions_api.alias_router(submissions.service, auth),
        submissions_api.trial_router(rooms.pipeline.trials, rooms.pipeline.plans, auth),
        stored_prompts_api.router(
            submissions.service.stored_prompts, rooms.pipeline.prompt_labels, auth
        ),
        submissions_api.check_router(rooms.pipeline.checks, auth),
        submissions_api.recipe_router(submissions.service, auth),
        submissions_api.quota_router(submissions.quotas, auth),
        costs_api.router(rooms.costs.service, submissions.service.require_visible, auth),
        competitions_api.router(rooms.competitions.service, auth),
        routing_api.router(
            rooms.routing.service, rooms.competitions.service, chat.conversations.seen, auth
        ),
        experiments_api.router(rooms.experiments.service, auth),
        characters_api.router(rooms.characters.service, auth),
        chat_api.router(chat.conversations, chat.editor, chat.memory, chat.persona_reader, auth),
        duels_api.router(rooms.duels.service, rooms.duels.rivals, rooms.duels.regenerations, auth),
        openai_api.router(rooms.openai.service, auth),
        feedback_api.router(feedback.service, feedback.erasures, auth),
        leaderboard_api.router(
            leaderboard.leaderboard,
            leaderboard.stability,
            leaderboard.verdicts,
            leaderboard.flags,
            leaderboard.seasons,
            leaderboard.uniform,
            auth,
        ),
        notifications_api.router(rooms.notifications.webhooks, auth),
        alerts_api.router(rooms.alerts.service, auth),
        compat_api.router(rooms.compat.service, rooms.accounts.accounts),
    )
    for routes in routers:
        add_routes(app, routes, Depends(keep_as_json))
    include_web(app, rooms.web)


def _include_operations(app: FastAPI, platform: Platform) -> None:
    """Add the routes that an operator's tools ask for; a worker answers these only."""
    routes = health.router(platform.health)
    metrics = Exposition(platform.metrics)

    @routes.get(
        "/metrics",
        dependencies=[platform.rooms.accounts.auth.require(Role.ADMIN)],
        response_class=PlainTextResponse,
    )
    async def read_metrics() -> Response:
        return Response(await metrics.text(), media_type=CONTENT_TYPE)

    add_routes(app, routes)
