"""OpenAI's API over HTTP, for the official clients as they are: /v1/models, /v1/completions, /v1/chat/completions.

A reply is one JSON object, or chunks as server-sent events that end with ``[DONE]``.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

from guanaco.accounts import Role
from guanaco.chat import Reply
from guanaco.errors import GuanacoError
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.gateway.generation import Pieces
from guanaco_server.chat.gateway.replies import ReplyEvents
from guanaco_server.chat.gateway.routes import Exchange, ReplyDescription, ReplyRoute
from guanaco_server.chat.gateway.streaming import Encoder
from guanaco_server.http.errors import ErrorForm, answer, status_of
from guanaco_server.http.openapi import schema_of
from guanaco_server.http.routes import Routes
from guanaco_server.openai.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ErrorObject,
    ModelList,
    OpenAiError,
    OpenAiModel,
)
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.openai.service import NamedModel, OpenAiService

PREFIX = "/v1/"
DONE = b"data: [DONE]\n\n"
STATUSES = {422: 400}
TYPES = {429: "requests"}  # of errors below 500 that are no invalid_request_error
CODES = {"unauthenticated": "invalid_api_key", "submission_not_found": "model_not_found"}
"""OpenAI's codes for ours, where programs ask for them."""
KEPT_HEADERS = frozenset({"retry-after", "www-authenticate", "allow"})

_json = msgspec.json.Encoder().encode


def router(openai: OpenAiService, auth: Auth) -> Routes:
    routes = Routes(prefix="/v1", tags=["openai"])
    anyone = auth.require(*Role)

    @routes.get("/models")
    async def list_models(account: Account = anyone) -> ModelList:
        return ModelList(data=[_model(one) for one in openai.models(account)])

    @routes.get("/models/{model:path}")
    async def read_model(model: str, account: Account = anyone) -> OpenAiModel:
        return _model(await openai.find_model(account, model))

    return routes


def completion_routes(openai: OpenAiService) -> tuple[ReplyRoute, ...]:
    def exchange(request: ChatCompletionRequest | CompletionRequest) -> Exchange:
        writer = _Writer(request)

        async def events(account: Account, _: str) -> ReplyEvents:
            if isinstance(request, ChatCompletionRequest):
                answer = await openai.chat(account, request)
            else:
                answer = await openai.complete(account, request)
            writer.name(answer.model)
            return answer.events

        encoder = Encoder(writer.pieces, writer.end, error_event, writer.whole, problem)
        return Exchange(events, encoder)

    anyone = tuple(Role)
    return (
        ReplyRoute("/v1/chat/completions", anyone, ChatCompletionRequest, "OpenAI's chat completion", exchange, problem, CHAT),
        ReplyRoute("/v1/completions", anyone, CompletionRequest, "OpenAI's completion", exchange, problem, TEXT),
    )  # fmt: skip


def _model(named: NamedModel) -> OpenAiModel:
    return OpenAiModel(id=named.id, created=int(named.created_at.timestamp()), owned_by=named.owner)


def problem(error: GuanacoError) -> Response:
    """OpenAI's form of an error, with the status and the headers of ours."""
    ours = answer(error)
    status = STATUSES.get(ours.status_code, ours.status_code)
    kept = {name: value for name, value in ours.headers.items() if name in KEPT_HEADERS}
    return JSONResponse(_error(error), status_code=status, headers=kept)


CHAT = ReplyDescription("openai", ChatCompletion, schema_of(ChatCompletionChunk))
TEXT = ReplyDescription("openai", Completion, schema_of(Completion))
ERRORS = ErrorForm(problem, OpenAiError, STATUSES)
"""The form of every error under PREFIX."""


def error_event(error: GuanacoError) -> bytes:
    return b"data: " + _json(_error(error)) + b"\n\n"


def _error(error: GuanacoError) -> dict[str, Any]:
    status = status_of(error)
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    code = "rate_limit_exceeded" if status == 429 else CODES.get(error.code, error.code)
    message = f"{error.detail} {error.hint}" if error.hint else error.detail
    fields = ErrorObject(message=message, type=kind, param=None, code=code)
    return OpenAiError(error=fields).model_dump()


class _Writer:
    """Writes one response. Every chunk has the same id, time and model: the one that answers, also where the request names any."""

    def __init__(self, request: ChatCompletionRequest | CompletionRequest) -> None:
        self._is_chat = isinstance(request, ChatCompletionRequest)
        self._has_usage = request.stream_options.include_usage
        self._is_first = True
        self._fields: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }

    def name(self, model: str) -> None:
        self._fields["model"] = model

    def pieces(self, pieces: Pieces) -> bytes:
        events = []
        for text in pieces:
            events.append(self._event(self._delta(text), None))
            self._is_first = False
        return b"".join(events)

    def end(self, reply: Reply) -> bytes:
        last = self._event({"delta": {}} if self._is_chat else {"text": ""}, reply)
        usage = self._data({"choices": [], "usage": _usage(reply)}) if self._has_usage else b""
        return last + usage + DONE

    def whole(self, reply: Reply) -> bytes:
        content: dict[str, Any] = {"text": reply.content}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": reply.content, "refusal": None}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reply.finish_reason}
        kind = "chat.completion" if self._is_chat else "text_completion"
        body = {**self._fields, "object": kind, "choices": [choice], "usage": _usage(reply)}
        return _json(body | _recorded_ids(reply))

    def _delta(self, text: str) -> dict[str, Any]:
        if not self._is_chat:
            return {"text": text}
        role = {"role": "assistant"} if self._is_first else {}
        return {"delta": {**role, "content": text}}

    def _event(self, content: dict[str, Any], reply: Reply | None) -> bytes:
        reason = reply.finish_reason if reply else None
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return self._data({"choices": [choice]} | (_recorded_ids(reply) if reply else {}))

    def _data(self, fields: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return b"data: " + _json({**self._fields, "object": kind, **fields}) + b"\n\n"


def _usage(reply: Reply) -> dict[str, int]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _recorded_ids(reply: Reply) -> dict[str, Any]:
    """Name the recorded conversation and message, which a rating needs."""
    if reply.conversation_id is None:
        return {}
    return {"guanaco": {"conversation_id": reply.conversation_id, "message_id": reply.message_id}}
