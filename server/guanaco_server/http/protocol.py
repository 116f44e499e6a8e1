"""uvicorn's HTTP, with one thing that ASGI lacks: an app may hang up on a client that does not read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT = "guanaco.abort"


class AbortableProtocol(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]


def abort_of(asgi: Scope) -> Callable[[], None] | None:
    """Ends the connection of a request at once, whatever waits to be read; None under another server."""
    found: Callable[[], None] | None = asgi.get("extensions", {}).get(ABORT)
    return found
