"""Reads a request's headers, query and body from ASGI, without a framework."""

from __future__ import annotations

from starlette.types import Receive, Scope

from guanaco.errors import PayloadTooLarge, RequestTimedOut

FAILED = "guanaco.reply_failed"


def header(asgi: Scope, name: bytes) -> str:
    for key, value in asgi["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return ""


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """Return the whole request body; RequestTimedOut when the client leaves or is sent away before, PayloadTooLarge when it does not end."""
    pieces: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= limit_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestTimedOut("body")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        has_more = message.get("more_body", False)
    if size > limit_bytes:
        raise PayloadTooLarge(limit_bytes)
    return b"".join(pieces)


def note_failure(asgi: Scope) -> None:
    """Note that the answer is an error although it began with status 200."""
    asgi[FAILED] = True


def has_failed(asgi: Scope) -> bool:
    return FAILED in asgi
