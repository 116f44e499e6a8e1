"""uvicorn's HTTP protocol with an extension: an application may close the connection of a client that does not read.

It overrides ``on_message_begin`` and reads ``scope`` and ``transport`` of uvicorn's class, which uvicorn does not promise to
keep. It was made for uvicorn 0.54; pyproject.toml allows no later minor version, and tests/unit/test_http_protocol.py
says what to look at before that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MADE_FOR = "0.54"
ABORT = "guanaco.abort"


class AbortableProtocol(HttpToolsProtocol):
    """Adds ABORT to the extensions of each request's scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        add_extension(cast(Scope, self.scope), ABORT, self.transport.abort)


def add_extension(asgi: Scope, name: str, extension: Any) -> None:
    """Add an extension to the scope and keep those that the server offers."""
    asgi["extensions"] = {**(asgi.get("extensions") or {}), name: extension}


def abort_of(asgi: Scope) -> Callable[[], None] | None:
    """The function that closes the request's connection at once; None under another server."""
    found: Callable[[], None] | None = (asgi.get("extensions") or {}).get(ABORT)
    return found
