"""Describes API calls before anybody sends them, and makes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from guanaco.contract import reader
from guanaco.errors import InvalidInput, SubmissionNotFound
from guanaco.errors.validation import one_sentence
from guanaco.sse import ServerEvent

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

API = "/api/v1"
ANSWER_TIMEOUT_S = 30.0
REPLY_TIMEOUT_S = 150.0  # the platform gives a whole reply 120 s
QUIET_TIMEOUT_S = 35.0  # the platform sends a heartbeat every 10 s, and a first token within 30 s
ALIAS = re.compile("[^/@]+/[^/@]+@[^/@]+")
NOT_TEXT = "A text has a character that UTF-8 cannot write: a half of a pair (surrogate)."


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request, relative to a server."""

    method: str
    path: str
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    content: bytes | None = None  # a body other than JSON
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

    ``parse`` gives None for an event that this version does not know; it is skipped. A resumable stream continues
    after a broken connection at the event that it had come to. A stream that ``must_end_with`` an event was cut off
    when it ends without it.
    """

    parse: Callable[[ServerEvent], T | None]
    is_resumable: bool = False
    must_end_with: str | None = None
    timeout_s: float = QUIET_TIMEOUT_S


def described(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what ``call`` returns; InvalidInput for wrong arguments, which quotes none of them.

    Pydantic's own error holds the values that it refuses: a user's words would come into an app's logs.
    """
    try:
        return call(*args, **kwargs)
    except ValidationError as error:
        sentence = one_sentence(error)
    except UnicodeEncodeError:
        sentence = NOT_TEXT
    raise InvalidInput(sentence)  # outside of the block: an error without a context


def get(path: str, kind: type[T], *, params: Mapping[str, str] | None = None) -> Call[T]:
    """Return a call that reads; ``kind`` is the answer's model, or a list of it."""
    return Call(
        method="GET",
        path=f"{API}{path}",
        params=params or {},
        parse=reader(kind).from_json,
        is_repeatable=True,
    )


def post(
    path: str,
    kind: type[T],
    body: BaseModel | None = None,
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
    idempotency_key: str | None = None,
) -> Call[T]:
    """Return a call that does something. It is sent once; with an Idempotency-Key it may be sent again, and is done once."""
    return Call(
        method="POST",
        path=f"{API}{path}",
        json=to_json(body),
        headers=keyed(idempotency_key),
        parse=reader(kind).from_json,
        is_repeatable=idempotency_key is not None,
        timeout_s=timeout_s,
    )


def keyed(idempotency_key: str | None) -> dict[str, str]:
    """Return the header that makes a POST idempotent for a day; none without a key."""
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def hub_token_header(hub_token: str | None) -> dict[str, str]:
    """Return the header that carries a developer's own Hub token; none without a token."""
    return {"X-Hub-Token": hub_token} if hub_token else {}


def patch(path: str, kind: type[T], body: BaseModel) -> Call[T]:
    """Return a call that changes a part of something; sending it again changes nothing more."""
    return Call(
        method="PATCH",
        path=f"{API}{path}",
        json=to_json(body),
        parse=reader(kind).from_json,
        is_repeatable=True,
    )


def delete(path: str, *, params: Mapping[str, str] | None = None) -> Call[None]:
    """Return a call that takes something away."""
    return Call(method="DELETE", path=f"{API}{path}", params=params or {}, parse=nothing)


def nothing(_content: bytes) -> None:
    """An answer without a body."""


def put(
    path: str,
    kind: type[T],
    body: BaseModel,
    *,
    params: Mapping[str, str] | None = None,
    is_repeatable: bool = True,
) -> Call[T]:
    """Return a call that replaces something by the body."""
    return Call(
        method="PUT",
        path=f"{API}{path}",
        params=params or {},
        json=to_json(body),
        parse=reader(kind).from_json,
        is_repeatable=is_repeatable,
    )


def of_submission(submission_id: str, *rest: str) -> str:
    """Return the path of a submission, or of something that it has. SubmissionNotFound for what is neither an id nor an alias."""
    _require_id(submission_id)
    if "/" in submission_id and not ALIAS.fullmatch(submission_id):
        raise SubmissionNotFound(submission_id)
    return "/".join(("/submissions", quote(submission_id, safe=""), *rest))


def of_conversation(conversation_id: str, *rest: str) -> str:
    """Return the path of a conversation, or of something that it has."""
    return "/".join(("/conversations", segment(conversation_id), *rest))


def segment(value: str) -> str:
    """Return an id as a part of a path. InvalidInput for one that would name another place."""
    _require_id(value)
    if "/" in value:  # a server reads %2F as the end of a part, too
        raise InvalidInput(f"{value[:100]!r} is not an id: an id has no slash.")
    return quote(value, safe="")


def _require_id(value: str) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"An id should be a string, not {type(value).__name__}.")
    if not value.strip("."):  # "", "." and ".."
        raise InvalidInput(f"{value!r} is not an id.")


def to_json(body: BaseModel | None) -> dict[str, Any] | None:
    return None if body is None else body.model_dump(mode="json")
