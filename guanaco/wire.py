"""What an API call is, before anybody sends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from guanaco.sse import ServerEvent

T = TypeVar("T")

ANSWER_TIMEOUT_S = 30.0
REPLY_TIMEOUT_S = 150.0  # the platform gives a whole reply 120 s
QUIET_TIMEOUT_S = 35.0  # the platform sends a heartbeat every 10 s, and a first token within 30 s


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request, relative to a server."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Call(Request, Generic[T]):
    """A request with one JSON answer. A repeatable one is sent again when the connection breaks."""

    parse: Callable[[bytes], T]
    is_repeatable: bool = False
    timeout_s: float = ANSWER_TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class StreamCall(Request, Generic[T]):
    """A request whose answer is a stream of server-sent events.

    A resumable one goes on after a broken connection at the event that it had come to. One that
    ``must_end_with`` an event was cut off when it ends without it.
    """

    parse: Callable[[ServerEvent], T]
    is_resumable: bool = False
    must_end_with: str | None = None
    timeout_s: float = QUIET_TIMEOUT_S
