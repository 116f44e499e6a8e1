"""Whose work this is: the ids that every log line of it carries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SCOPE: ContextVar[dict[str, str] | None] = ContextVar("guanaco_scope", default=None)
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


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


def request_id(given: str) -> str:
    """The client's own id of a request, if it can be one, else a new one."""
    return given if GIVEN_ID.fullmatch(given) else secrets.token_hex(16)
