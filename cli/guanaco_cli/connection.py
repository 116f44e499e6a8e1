"""The server that commands talk to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

    from guanaco.client import Client

transport: ContextVar[httpx.BaseTransport | None] = ContextVar("transport", default=None)
"""Takes the place of the network, in tests."""


def connect() -> Client:
    """Return a client of the profile's server."""
    from guanaco.client import Client

    return Client(transport=transport.get())
