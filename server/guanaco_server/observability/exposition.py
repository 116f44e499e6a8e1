"""Serves the metrics to Prometheus: on a port of their own, or on the API's with an admin key.

The text is written in a thread, by one scrape at a time: it takes 50 ms and more, during which nobody would be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from guanaco.errors import InvalidSettings
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime import threads

CONTENT_TYPE = CONTENT_TYPE_LATEST
SCRAPES_AT_ONCE = 8  # each has a thread
SCRAPE_S = 10.0  # as long as Prometheus waits by default


def scrape(metrics: Metrics) -> bytes:
    return generate_latest(metrics.registry)


class Exposition:
    """The metrics' text for the API's route. Concurrent requests are given the same answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._written: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        if self._written is None or self._written.done():
            self._written = asyncio.create_task(
                threads.METRICS.run(scrape, self._metrics), name="write the metrics"
            )
        return await asyncio.shield(self._written)


@contextmanager
def serving(
    metrics: Metrics, host: str, port: int | None, longest_s: float = SCRAPE_S
) -> Iterator[None]:
    """Answer scrapes on a port of their own, in threads; nothing without a port."""
    if port is None:
        yield
        return
    try:
        server = make_server(host, port, _one_at_a_time(metrics), _server_for(host), _ScrapeHandler)
    except OSError as error:
        raise InvalidSettings(
            f"Cannot serve metrics on {host}:{port}: {error.strerror}.",
            hint="Choose another metrics_port.",
        ) from None
    server.longest_s = longest_s
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _one_at_a_time(metrics: Metrics) -> Callable[..., Iterable[bytes]]:
    """Threads that write at the same time would all take turns with the event loop."""
    app = make_wsgi_app(metrics.registry)
    writing = threading.Lock()

    def answer(environment: Any, start_response: Any) -> Iterable[bytes]:
        with writing:
            written: Iterable[bytes] = app(environment, start_response)
            return written

    return answer


class _ScrapeHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _ScrapeServer(ThreadingWSGIServer):
    """Has few threads, and ends a connection that takes longer than ``longest_s``: anybody may connect."""

    longest_s = SCRAPE_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._places = threading.Semaphore(SCRAPES_AT_ONCE)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        limit = threading.Timer(self.longest_s, _cut, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()


class _ServerV6(_ScrapeServer):
    address_family = socket.AF_INET6


def _server_for(host: str) -> type[_ScrapeServer]:
    return _ServerV6 if ":" in host else _ScrapeServer


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
