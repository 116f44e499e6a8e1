"""Around every HTTP request: an id in its log lines and its answer, and a measurement by route template."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import request_id, scope

HEADER = "x-request-id"
TRACE_HEADER = "traceparent"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"  # paths that are none of ours are not told apart: anybody can make them up
ABANDONED = 499  # nginx's status for a client that left before it got one


class Observed:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

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
        given = request_id(headers.get(HEADER, ""), headers.get(TRACE_HEADER, ""))
        with scope(request_id=given):
            try:
                await self._app(asgi, receive, labelled(send, given, note))
            finally:
                method = asgi["method"] if asgi["method"] in METHODS else "other"
                seconds = time.perf_counter() - started
                self._metrics.note_http(method, _template(asgi), status, seconds)


def labelled(send: Send, given: str, note: Callable[[int], None]) -> Send:
    """The same, with the request's id in the answer's header; ``note`` hears its status."""

    async def send_labelled(message: Message) -> None:
        if message["type"] == "http.response.start":
            note(message["status"])
            MutableHeaders(scope=message)[HEADER] = given
        await send(message)

    return send_labelled


def _template(asgi: Scope) -> str:
    return str(getattr(asgi.get("route"), "path", UNMATCHED))
