"""The chat gateway: every route that answers with a reply, in front of the framework. Everything else is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.accounts import Role
from guanaco.chat import MessageRequest, PreviewRequest, RegenerateRequest, Reply
from guanaco.errors import GuanacoError, InvalidInput
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.generation import Pieces
from guanaco_server.chat.previews import PreviewService
from guanaco_server.chat.replies import ReplyEvents, ReplyService
from guanaco_server.chat.streaming import Encoder, ReplyResponse
from guanaco_server.http_errors import answer, as_guanaco_error, describe_problems
from guanaco_server.sse import encode_event

BODY_TIMEOUT_S = 30.0  # for a client that sends its request a byte at a time

Request = MessageRequest | RegenerateRequest | PreviewRequest
Model = TypeVar("Model", bound=BaseModel)

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class ReplyRoute:
    """``POST prefix{id}/action``. ``events`` begins the reply for the caller and the id."""

    prefix: str
    action: str
    parameter: str
    role: Role
    model: type[Request]
    summary: str
    events: Callable[[Account, str, Any], Coroutine[Any, Any, ReplyEvents]]

    @property
    def path(self) -> str:
        return f"{self.prefix}{{{self.parameter}}}/{self.action}"


def reply_routes(replies: ReplyService, previews: PreviewService) -> tuple[ReplyRoute, ...]:
    conversations, submissions = "/api/v1/conversations/", "/api/v1/submissions/"

    def regenerate(
        account: Account, conversation_id: str, _: RegenerateRequest
    ) -> Coroutine[Any, Any, ReplyEvents]:
        return replies.regenerate(account, conversation_id)

    return (
        ReplyRoute(conversations, "messages", "conversation_id", Role.BACKEND, MessageRequest, "Send a message, get the reply", replies.send),
        ReplyRoute(conversations, "regenerate", "conversation_id", Role.BACKEND, RegenerateRequest, "Answer the last message anew", regenerate),
        ReplyRoute(submissions, "preview", "submission_id", Role.DEVELOPER, PreviewRequest, "Try a model of one's own; nothing is recorded", previews.preview),
    )  # fmt: skip


class ChatGateway:
    """``heartbeat_s`` is the longest silence of a stream."""

    def __init__(
        self, app: ASGIApp, routes: Sequence[ReplyRoute], auth: Auth, heartbeat_s: float
    ) -> None:
        self._app = app
        self._routes = {
            (route.prefix, route.action): (route, auth.entrance(route.role), SimpleNamespace(path=route.path))
            for route in routes
        }  # fmt: skip
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix, name, action = _split(scope["path"]) if scope["type"] == "http" else ("", "", "")
        found = self._routes.get((prefix, action))
        if found is None or not name or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        route, enter, scope["route"] = found
        try:
            account = await enter(header(scope, b"authorization"))
            request = parse_body(route.model, await read_body(receive))
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            await answer(as_guanaco_error(route.path, fault))(scope, receive, send)
            return
        response = ReplyResponse(scope, receive, send, ENCODER, self._heartbeat_s)
        respond = response.stream if request.stream else response.whole
        await respond(route.events(account, name, request))


def _split(path: str) -> tuple[str, str, str]:
    """Of /api/v1/NOUN/ID/ACTION: up to the id, the id, the action."""
    head, _, action = path.rpartition("/")
    noun, slash, name = head.rpartition("/")
    return noun + slash, name, action


def header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return ""


async def read_body(receive: Receive) -> bytes:
    """The whole request body; InvalidInput when it does not come. Its size is limited further out."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        pieces = [body]
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while message.get("more_body"):
                    message = await receive()
                    pieces.append(message.get("body", b""))
        except TimeoutError:
            raise InvalidInput("The request's body did not come.") from None
        body = b"".join(pieces)
    return body


def parse_body(model: type[Model], body: bytes) -> Model:
    """InvalidInput with a sentence for what it should not be; no body is an empty object."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise InvalidInput(describe_problems(error.errors())) from None


def _pieces(pieces: Pieces) -> bytes:
    return b"".join([b'event: token\ndata: {"text":' + _json(text) + b"}\n\n" for text in pieces])


def _end(reply: Reply) -> bytes:
    return encode_event("done", reply)


def _error(error: GuanacoError) -> bytes:
    return encode_event("error", error.to_wire())


def _whole(reply: Reply) -> bytes:
    return reply.model_dump_json().encode()


ENCODER = Encoder(pieces=_pieces, end=_end, error=_error, whole=_whole)
