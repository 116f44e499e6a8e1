"""How Prometheus gets the metrics: a port of their own, or the API's with an admin key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest, start_http_server

from guanaco.errors import InvalidSettings
from guanaco_server.observability.metrics import Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


def scrape(metrics: Metrics) -> bytes:
    return generate_latest(metrics.registry)


@contextmanager
def serving(metrics: Metrics, host: str, port: int | None) -> Iterator[None]:
    """Answer scrapes on a port of their own, in a thread; nothing without a port."""
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise InvalidSettings(
            f"Cannot serve metrics on {host}:{port}: {error.strerror}.",
            hint="Choose another metrics_port.",
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
