"""Whose work this is: the ids that every log line of it carries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SCOPE: ContextVar[dict[str, str] | None] = ContextVar("guanaco_scope", default=None)
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# https://www.w3.org/TR/trace-context/: version, trace id, the caller's span, flags; later versions may have more.
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


@contextmanager
def scope(**ids: str) -> Iterator[None]:
    """Within, and in tasks begun within, log lines carry these ids too."""
    token = _SCOPE.set({**current_ids(), **ids})
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_ids() -> dict[str, str]:
    return _SCOPE.get() or {}


def request_id(given: str, traceparent: str = "") -> str:
    """Return the client's own id of a request, if it can be one, else its W3C trace id, else a new one of that form."""
    if GIVEN_ID.fullmatch(given):
        return given
    trace = TRACEPARENT.fullmatch(traceparent)
    return trace[1] if trace else secrets.token_hex(16)
