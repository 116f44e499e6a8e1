"""HTTP in front of the platform: routes, errors and limits."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from guanaco import __version__
from guanaco.accounts import Role
from guanaco_server.accounts import api as accounts_api
from guanaco_server.accounts.auth import Auth
from guanaco_server.assembly.platform import Platform
from guanaco_server.chat import api as chat_api
from guanaco_server.chat.gateway import ChatGateway, reply_routes
from guanaco_server.chat.openapi import document
from guanaco_server.compat import api as compat_api
from guanaco_server.compat.service import OldClientService
from guanaco_server.competitions import api as competitions_api
from guanaco_server.costs import api as costs_api
from guanaco_server.experiments import api as experiments_api
from guanaco_server.feedback import api as feedback_api
from guanaco_server.http import errors as http_errors
from guanaco_server.http import health
from guanaco_server.http.body_limit import BodyLimit
from guanaco_server.leaderboard import api as leaderboard_api
from guanaco_server.notifications import api as notifications_api
from guanaco_server.observability.exposition import CONTENT_TYPE, scrape
from guanaco_server.observability.http import Observed
from guanaco_server.openai import api as openai_api
from guanaco_server.routing import api as routing_api
from guanaco_server.settings import Settings
from guanaco_server.submissions import api as submissions_api
from guanaco_server.web.mounting import include_web


def create_app(platform: Platform) -> FastAPI:
    app = GatewayedApp(
        title="Guanaco",
        version=__version__,
        summary="Submit chat models, read what people think of them.",
        docs_url=None,  # web/pages/reference.py: FastAPI's own asks another host for its scripts
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, limit_bytes=platform.settings.max_body_bytes)
    http_errors.install(app)
    app.add_middleware(Observed, metrics=platform.metrics)
    trust_proxies(app, platform.settings)
    if platform.settings.role == "worker":
        include_operations(app, platform)
    else:
        install_gateway(app, platform, platform.settings.max_body_bytes)
        include_routes(app, platform)
    return app


def trust_proxies(app: FastAPI, settings: Settings) -> None:
    """Behind them a client's address and scheme are those that X-Forwarded-For and -Proto name."""
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))


class GatewayedApp(FastAPI):
    """The framework, and a gateway in front of it and of its middlewares."""

    gateway: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.gateway or super().__call__)(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def install_gateway(app: GatewayedApp, platform: Platform, limit_bytes: int) -> None:
    """What answers with a reply, in front of the framework, and in its OpenAPI document all the same."""
    routes = (
        *reply_routes(platform.replies, platform.previews),
        *openai_api.completion_routes(platform.openai),
    )
    app.gateway = ChatGateway(
        app.framework,
        routes,
        Auth(platform.accounts),
        platform.metrics,
        limit_bytes,
        platform.settings.heartbeat_s,
    )
    write = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        schema = write()
        if is_new:
            document(schema, routes)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def include_routes(app: FastAPI, platform: Platform) -> None:
    """Every route there is, over the platform's services."""
    auth = Auth(platform.accounts)
    app.include_router(accounts_api.router(platform.accounts, platform.audit, auth))
    app.include_router(submissions_api.router(platform.submissions, platform.events, auth))
    app.include_router(submissions_api.recipe_router(platform.submissions, auth))
    app.include_router(costs_api.router(platform.costs, platform.submissions.require_visible, auth))
    app.include_router(competitions_api.router(platform.competitions, auth))
    app.include_router(
        routing_api.router(
            platform.routing, platform.competitions, platform.conversations.seen, auth
        )
    )
    app.include_router(experiments_api.router(platform.experiments, auth))
    app.include_router(chat_api.router(platform.conversations, auth))
    app.include_router(openai_api.router(platform.openai, auth))
    app.include_router(feedback_api.router(platform.feedback, platform.erasures, auth))
    app.include_router(
        leaderboard_api.router(
            platform.leaderboard, platform.scores.audit, platform.scores.seasons, auth
        )
    )
    app.include_router(notifications_api.router(platform.notifications.webhooks, auth))
    app.include_router(compat_api.router(_old_client(platform), platform.accounts))

    include_operations(app, platform)
    include_web(app, platform.web)


def _old_client(platform: Platform) -> OldClientService:
    return OldClientService(
        platform.submissions,
        platform.events,
        platform.previews,
        platform.feedback,
        platform.leaderboard,
        platform.competitions,
    )


def include_operations(app: FastAPI, platform: Platform) -> None:
    """What an operator's tools ask: all that a worker answers."""
    app.include_router(health.router(platform.health))

    @app.get(
        "/metrics", tags=["health"], dependencies=[Auth(platform.accounts).require(Role.ADMIN)]
    )
    async def read_metrics() -> Response:
        return Response(scrape(platform.metrics), media_type=CONTENT_TYPE)
