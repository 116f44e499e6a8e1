"""Carries the ids that every log line of a piece of work has."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

_SCOPE: ContextVar[dict[str, str] | None] = ContextVar("guanaco_scope", default=None)
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# https://www.w3.org/TR/trace-context/: version, trace id, the caller's span, flags; later versions may have more.
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


@contextmanager
def scope(**ids: str) -> Iterator[None]:
    """Have log lines within the block, and in tasks begun within it, carry these ids."""
    token = _SCOPE.set({**current_ids(), **ids})
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_ids() -> dict[str, str]:
    return _SCOPE.get() or {}


class RequestIds(NamedTuple):
    """``request_id`` is the client's own, or the trace's; ``traceparent`` is what the client sent, or empty."""

    request_id: str
    trace_id: str
    traceparent: str = ""

    @property
    def logged(self) -> dict[str, str]:
        """Return the ids that each log line of the request has."""
        if self.request_id == self.trace_id:
            return {"request_id": self.request_id}
        return {"request_id": self.request_id, "trace_id": self.trace_id}


def request_ids(given: str, traceparent: str = "") -> RequestIds:
    """Return the ids of a request: the client's own where they can be ids, else new ones of the same form."""
    trace = TRACEPARENT.fullmatch(traceparent)
    trace_id = trace[1] if trace else secrets.token_hex(16)
    request_id = given if GIVEN_ID.fullmatch(given) else trace_id
    return RequestIds(request_id, trace_id, traceparent if trace else "")
