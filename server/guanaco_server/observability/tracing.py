"""Spans of a request: what a turn waited for, as a tree that a trace viewer draws (https://www.w3.org/TR/trace-context/).

    the app's span → POST …/messages → claim the turn, render the prompt, wait for a place, model server, store the turn

Each request has one span; ``span("render the prompt")`` anywhere within it makes a child of it. Without ``otlp_endpoint``
there is no request to find, and ``span`` gives an object that does nothing.

No span holds what users wrote, a key, or who anybody is: ``SpanFacts`` has all that can be noted.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol, Self, TypedDict, Unpack

from guanaco_server.observability.scope import RequestIds


class SpanFacts(TypedDict, total=False):
    """``error`` is an error's code; ``has_begun`` says that the first token is here."""

    submission_id: str
    endpoint: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    has_begun: bool
    error: str


class TraceSpan(Protocol):
    """One step of a request, as long as the ``with`` block takes. It notes the code of an error that passes through."""

    @property
    def traceparent(self) -> str:
        """The header that tells another server that its work belongs here; empty without tracing."""
        ...

    def note(self, **facts: Unpack[SpanFacts]) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class RequestSpan(Protocol):
    """The span of a whole request."""

    def child(self, name: str, *, is_call: bool) -> TraceSpan:
        """Return a step within it; ``is_call`` for a request to another server."""
        ...

    def end(self, route: str, status: int) -> None:
        """Say that the answer is sent. What tasks of this request begin later belongs to no trace."""
        ...


class Tracing(Protocol):
    """The place to which spans are sent."""

    def begin(self, ids: RequestIds, method: str) -> RequestSpan | None:
        """Return the request's span; None where nothing is traced."""
        ...

    async def close(self) -> None:
        """Send what is left, if that takes no more than a moment."""
        ...


class NoTracing:
    def begin(self, ids: RequestIds, method: str) -> RequestSpan | None:
        return None

    async def close(self) -> None:
        """Do nothing."""


class NoSpan:
    """A step of a request that is not recorded. Another server is told so by its ``traceparent``."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def note(self, **facts: Unpack[SpanFacts]) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Do nothing."""


_REQUEST: ContextVar[RequestSpan | None] = ContextVar("guanaco_request_span", default=None)
NO_SPAN = NoSpan()


class use_span:  # noqa: N801 - used as a function; a generator would cost each reply a microsecond more
    """Within, and in tasks begun within, ``span`` makes children of this request's span."""

    __slots__ = ("_request", "_token")

    def __init__(self, request: RequestSpan | None) -> None:
        self._request = request

    def __enter__(self) -> None:
        self._token = None if self._request is None else _REQUEST.set(self._request)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._token is not None:
            _REQUEST.reset(self._token)


def span(name: str, *, is_call: bool = False) -> TraceSpan:
    """Return a step of the request that is being answered, to be used ``with``."""
    request = _REQUEST.get()
    return NO_SPAN if request is None else request.child(name, is_call=is_call)
