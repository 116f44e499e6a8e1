"""Observes every HTTP request: its ids are in its log lines and its answer, it has a span, and is measured by route template."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import RequestIds, request_ids, scope
from guanaco_server.observability.tracing import Tracing, use_span

HEADER = "x-request-id"
TRACE_ID_HEADER = "x-trace-id"
TRACE_HEADER = "traceparent"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"  # paths that are none of ours are not told apart: anybody can make them up
UNTRACED = frozenset(
    {"/healthz", "/readyz", "/metrics"}
)  # asked every few seconds, and about nobody
ABANDONED = 499  # nginx's status for a client that left before it got one


class Observed:
    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, asgi: Scope, receive: Receive, send: Send) -> None:
        if asgi["type"] != "http":
            await self._app(asgi, receive, send)
            return
        started = time.perf_counter()
        status = ABANDONED

        def note(sent: int) -> None:
            nonlocal status
            status = sent

        headers = Headers(scope=asgi)
        ids = request_ids(headers.get(HEADER, ""), headers.get(TRACE_HEADER, ""))
        method = asgi["method"] if asgi["method"] in METHODS else "other"
        request = None if asgi["path"] in UNTRACED else self._tracing.begin(ids, method)
        with scope(**ids.logged), use_span(request):
            try:
                await self._app(asgi, receive, labelled(send, ids, note))
            finally:
                seconds = time.perf_counter() - started
                self._metrics.note_http(method, route_template(asgi), status, seconds)
                if request is not None:
                    request.end(route_template(asgi), status)


def labelled(send: Send, ids: RequestIds, note: Callable[[int], None]) -> Send:
    """Return the same, with the request's ids in the answer's header; ``note`` hears its status."""

    async def send_labelled(message: Message) -> None:
        if message["type"] == "http.response.start":
            note(message["status"])
            headers = MutableHeaders(scope=message)
            headers[HEADER], headers[TRACE_ID_HEADER] = ids.request_id, ids.trace_id
        await send(message)

    return send_labelled


def route_template(asgi: Scope) -> str:
    return str(getattr(asgi.get("route"), "path", UNMATCHED))
