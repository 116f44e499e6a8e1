"""The chat gateway: every route that answers with a reply, in front of the framework. Everything else is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.accounts import Role
from guanaco.chat import MessageRequest, PreviewRequest, RegenerateRequest
from guanaco.errors import GuanacoError, InvalidInput
from guanaco_server.accounts.auth import Auth, key_in
from guanaco_server.accounts.service import Account
from guanaco_server.chat.events import ENCODER
from guanaco_server.chat.previews import PreviewService
from guanaco_server.chat.replies import ReplyEvents, ReplyService
from guanaco_server.chat.streaming import Encoder, ReplyResponse
from guanaco_server.http_errors import answer, as_guanaco_error, describe_problems

BODY_TIMEOUT_S = 30.0  # for a client that sends its request a byte at a time

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ReplyRoute:
    """``POST path``, which may end with ``{id}/action``. ``events`` begins the reply for the caller and the id."""

    path: str
    roles: tuple[Role, ...]
    model: type[BaseModel]
    summary: str
    events: Callable[[Account, str, Any], Coroutine[Any, Any, ReplyEvents]]
    encoder: Callable[[Any], Encoder] = lambda _: ENCODER
    problem: Callable[[GuanacoError], ASGIApp] = answer

    @property
    def pattern(self) -> tuple[str, str]:
        """What is before the id, and the action after it; of a path without an id, the whole."""
        head, brace, tail = self.path.partition("{")
        return (head, tail.partition("}/")[2]) if brace else (self.path, "")


def reply_routes(replies: ReplyService, previews: PreviewService) -> tuple[ReplyRoute, ...]:
    conversation = "/api/v1/conversations/{conversation_id}"

    async def regenerate(
        account: Account, conversation_id: str, _: RegenerateRequest
    ) -> ReplyEvents:
        return await replies.regenerate(account, conversation_id)

    return (
        ReplyRoute(f"{conversation}/messages", (Role.BACKEND,), MessageRequest, "Send a message, get the reply", replies.send),
        ReplyRoute(f"{conversation}/regenerate", (Role.BACKEND,), RegenerateRequest, "Answer the last message anew", regenerate),
        ReplyRoute("/api/v1/submissions/{submission_id}/preview", (Role.DEVELOPER,), PreviewRequest, "Try a model of one's own; nothing is recorded", previews.preview),
    )  # fmt: skip


class ChatGateway:
    """``heartbeat_s`` is the longest silence of a stream."""

    def __init__(
        self, app: ASGIApp, routes: Sequence[ReplyRoute], auth: Auth, heartbeat_s: float
    ) -> None:
        self._app = app
        self._routes = {
            route.pattern: (route, auth.entrance(*route.roles), SimpleNamespace(path=route.path))
            for route in routes
        }
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found, name = self._find(scope["path"]) if scope["type"] == "http" else (None, "")
        if found is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        route, enter, scope["route"] = found
        encoder = route.encoder
        try:
            account = await enter(key_in(header(scope, b"authorization")))
            request = parse_body(route.model, await read_body(receive))
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error(route.path, fault)
            await route.problem(error)(scope, receive, send)
            return
        response = ReplyResponse(scope, receive, send, encoder(request), self._heartbeat_s)
        respond = response.stream if getattr(request, "stream", False) else response.whole
        await respond(route.events(account, name, request))

    def _find(self, path: str) -> tuple[Any, str]:
        """The route of a path, and the id in it."""
        if found := self._routes.get((path, "")):
            return found, ""
        head, _, action = path.rpartition("/")
        noun, slash, name = head.rpartition("/")
        return (self._routes.get((noun + slash, action)) if name else None), name


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
