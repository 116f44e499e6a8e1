"""The chat gateway: serves every route that answers with a reply, in front of FastAPI. All other requests are passed on.

The gateway limits, measures and authenticates by itself, because a middleware around each token costs more than the
token. It writes its routes into the OpenAPI document, which FastAPI makes of its own routes only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from string import Formatter
from typing import Any, TypeVar

import msgspec
from fastapi import Body
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.accounts import Role
from guanaco.chat import (
    ContinueRequest,
    MessageRequest,
    PreviewRequest,
    RegenerateRequest,
    Reply,
    Token,
)
from guanaco.errors import (
    GuanacoError,
    InvalidInput,
    MethodNotAllowed,
    PayloadTooLarge,
    PromptFailed,
)
from guanaco_server.accounts.auth import Auth, key_in
from guanaco_server.accounts.service import Account
from guanaco_server.chat.gateway.generation import Pieces
from guanaco_server.chat.gateway.replies import PreviewService, ReplyEvents, ReplyService
from guanaco_server.chat.gateway.streaming import Encoder, Events, ReplyResponse
from guanaco_server.http.asgi import header, read_body
from guanaco_server.http.bodies import refuse_nul
from guanaco_server.http.errors import (
    ErrorBody,
    answer,
    as_guanaco_error,
    describe_problems,
    status_of,
)
from guanaco_server.http.openapi import event_schema
from guanaco_server.http.sse import EVENT_STREAM, encode_event
from guanaco_server.observability.http import HEADER, METHODS, TRACE_HEADER
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import request_ids, scope
from guanaco_server.observability.tracing import Tracing, use_span

TALKERS = (Role.BACKEND, Role.DEVELOPER)  # developers with their own submissions
ID_HEADER, PARENT_HEADER = HEADER.encode(), TRACE_HEADER.encode()

Enter = Callable[[str], Awaitable[Account]]
Model = TypeVar("Model", bound=BaseModel)


_json_lines = msgspec.json.Encoder().encode_lines
BEFORE_TEXT, AFTER_TEXT = b'event: token\ndata: {"text":', b"}\n\n"


def _pieces(pieces: Pieces) -> bytes:
    """Encode all pieces at once, a line each: JSON escapes the line ends within a text."""
    texts = _json_lines(pieces)[:-1].replace(b"\n", AFTER_TEXT + BEFORE_TEXT)
    return BEFORE_TEXT + texts + AFTER_TEXT


def _end(reply: Reply) -> bytes:
    return encode_event("done", reply)


def _error(error: GuanacoError) -> bytes:
    return encode_event("error", error.to_wire())


def _whole(reply: Reply) -> bytes:
    return reply.model_dump_json().encode()


ENCODER = Encoder(pieces=_pieces, end=_end, error=_error, whole=_whole, problem=answer)


@dataclass(frozen=True)
class Exchange:
    """One request and its reply. ``events`` begins the reply for the caller and the id in the path, ``encoder`` writes it."""

    events: Callable[[Account, str], Coroutine[Any, Any, Events]]
    encoder: Encoder


@dataclass(frozen=True)
class ReplyDescription:
    """The description of a reply in OpenAPI: whole, and as the events of a stream."""

    tag: str
    whole: type[BaseModel]
    events: Mapping[str, Any]


OURS = ReplyDescription(
    "chat", Reply, event_schema({"token": Token, "done": Reply, "error": ErrorBody})
)


@dataclass(frozen=True)
class ReplyRoute:
    """``POST path``, which may end with ``{id}/action``. Where it ``has_other_methods``, the app answers those."""

    path: str
    roles: tuple[Role, ...]
    model: type[BaseModel]
    summary: str
    exchange: Callable[[Any], Exchange]
    problem: Callable[[GuanacoError], ASGIApp] = answer
    description: ReplyDescription = OURS
    has_other_methods: bool = False

    def described(self, auth: Auth) -> APIRoute:
        """Make the route that describes it to OpenAPI. It answers nothing: the gateway is in front of it."""

        def never() -> None:
            raise AssertionError(f"the gateway answers {self.path}")

        kind = Parameter.POSITIONAL_OR_KEYWORD
        ids = [name for _, name, _, _ in Formatter().parse(self.path) if name]
        parameters = [Parameter(name, kind, annotation=str) for name in ids]
        is_optional = not any(field.is_required() for field in self.model.model_fields.values())
        default = Body(default=None) if is_optional else Body()
        parameters.append(Parameter("request", kind, annotation=self.model, default=default))
        never.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return APIRoute(
            self.path,
            never,
            methods=["POST"],
            name=re.split(r"}/|/v1/", self.path)[-1].replace("/", "_"),
            summary=self.summary,
            tags=[self.description.tag],
            dependencies=[auth.require(*self.roles)],
            response_model=self.description.whole,
            response_description="The reply; with `stream` as events.",
            responses={
                200: {"content": {EVENT_STREAM: {"schema": dict(self.description.events)}}},
                504: {},
            },
        )

    @property
    def pattern(self) -> tuple[str, str]:
        """The path before the id, and the action after it. A path without an id is the first alone."""
        head, brace, tail = self.path.partition("{")
        return (head, tail.partition("}/")[2]) if brace else (self.path, "")


def ours(
    events: Callable[[Account, str, Any], Coroutine[Any, Any, ReplyEvents]],
) -> Callable[[Any], Exchange]:
    """Return the exchange of a reply in our own form, from what begins it for the caller, the id and the request."""

    def exchange(request: BaseModel) -> Exchange:
        return Exchange(lambda account, name: events(account, name, request), ENCODER)

    return exchange


Regenerate = Callable[[Account, str, RegenerateRequest], Coroutine[Any, Any, ReplyEvents]]


def reply_routes(
    replies: ReplyService, previews: PreviewService, regenerate: Regenerate
) -> tuple[ReplyRoute, ...]:
    conversation = "/api/v1/conversations/{conversation_id}"

    async def continue_reply(
        account: Account, conversation_id: str, _: ContinueRequest
    ) -> ReplyEvents:
        return await replies.continue_reply(account, conversation_id)

    return (
        ReplyRoute(f"{conversation}/messages", TALKERS, MessageRequest, "Send a message, get the reply", ours(replies.send)),
        ReplyRoute(f"{conversation}/regenerate", TALKERS, RegenerateRequest, "Answer the last message again", ours(regenerate)),
        ReplyRoute(f"{conversation}/continue", TALKERS, ContinueRequest, "Have the last reply go on where it ended", ours(continue_reply)),
        ReplyRoute("/api/v1/submissions/{submission_id}/preview", (Role.DEVELOPER,), PreviewRequest, "Try a model of one's own; nothing is recorded", ours(previews.preview)),
    )  # fmt: skip


class ChatGateway:
    """An ASGI application in front of ``app``. ``heartbeat_s`` is the longest silence of a stream."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[ReplyRoute],
        auth: Auth,
        metrics: Metrics,
        tracing: Tracing,
        limit_bytes: int,
        heartbeat_s: float,
    ) -> None:
        self._app = app
        self._routes: dict[tuple[str, str], tuple[ReplyRoute, Enter]] = {
            route.pattern: (route, auth.entrance(*route.roles)) for route in routes
        }
        self._metrics = metrics
        self._tracing = tracing
        self._limit_bytes = limit_bytes
        self._heartbeat_s = heartbeat_s

    async def __call__(self, asgi: Scope, receive: Receive, send: Send) -> None:
        found, name = self._find(asgi["path"]) if asgi["type"] == "http" else (None, "")
        if found is None or (found[0].has_other_methods and asgi["method"] != "POST"):
            await self._app(asgi, receive, send)
            return
        started = time.perf_counter()
        ids = request_ids(header(asgi, ID_HEADER), header(asgi, PARENT_HEADER))
        method = asgi["method"] if asgi["method"] in METHODS else "other"
        request = self._tracing.begin(ids, method)
        response = ReplyResponse(asgi, receive, send, ids, self._heartbeat_s)
        with scope(**ids.logged), use_span(request):
            try:
                await self._answer(*found, name, asgi, receive, response)
            finally:
                seconds = time.perf_counter() - started
                self._metrics.note_http(method, found[0].path, response.status, seconds)
                if is_counted(response.is_whole, response.error):
                    self._metrics.tally.note_reply(response.is_whole)
                if request is not None:
                    request.end(found[0].path, response.status)

    async def _answer(
        self,
        route: ReplyRoute,
        enter: Enter,
        name: str,
        asgi: Scope,
        receive: Receive,
        response: ReplyResponse,
    ) -> None:
        try:
            if asgi["method"] != "POST":
                raise MethodNotAllowed(asgi["method"], asgi["path"], "POST")
            length = header(asgi, b"content-length") or "0"
            if not length.isdigit() or int(length) > self._limit_bytes:
                raise PayloadTooLarge(self._limit_bytes)
            account = await enter(key_in(header(asgi, b"authorization")))
            body = await read_body(receive, self._limit_bytes)
            request = parse_body(route.model, body)
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            await response.refuse(as_guanaco_error(route.path, fault), route.problem)
            return
        respond = response.stream if getattr(request, "stream", False) else response.whole
        exchange = route.exchange(request)
        await respond(exchange.events(account, name), exchange.encoder)

    def _find(self, path: str) -> tuple[tuple[ReplyRoute, Enter] | None, str]:
        """Return the route of a path with its entrance, and the id in it."""
        head, _, action = path.rpartition("/")
        noun, slash, name = head.rpartition("/")
        if name and (found := self._routes.get((noun + slash, action))):
            return found, name
        return self._routes.get((path, "")), ""


def is_counted(is_whole: bool, error: GuanacoError | None) -> bool:
    """Tell whether a reply counts for the service level: one that came, or that failed for a reason which is the platform's.

    Left out are what the client did wrong, clients that left, and prompts that their developer wrote wrongly.
    """
    if is_whole:
        return True
    return error is not None and status_of(error) >= 500 and not isinstance(error, PromptFailed)


def parse_body(model: type[Model], body: bytes) -> Model:
    """InvalidInput with a sentence for what it should not be; no body is an empty object."""
    refuse_nul(body)
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise InvalidInput(describe_problems(error.errors())) from None
