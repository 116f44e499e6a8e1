"""How OpenAI writes a reply: one object, or chunks as server-sent events that end with [DONE]."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

from guanaco.chat import Reply
from guanaco.errors import GuanacoError, InvalidInput, NotFound, Unavailable
from guanaco_server.chat.gateway.generation import Pieces
from guanaco_server.chat.gateway.streaming import Encoder
from guanaco_server.http.errors import answer
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest

DONE = b"data: [DONE]\n\n"

_json = msgspec.json.Encoder().encode


def encoder(request: ChatCompletionRequest | CompletionRequest) -> Encoder:
    writer = _Writer(request)
    return Encoder(writer.pieces, writer.end, error_event, writer.whole, problem)


def problem(error: GuanacoError) -> Response:
    """OpenAI's form of an error, with the status and the headers of ours."""
    ours = answer(error)
    status = 400 if ours.status_code == 422 else ours.status_code
    kept = {name: value for name, value in ours.headers.items() if name in KEPT_HEADERS}
    return JSONResponse(_error(error), status_code=status, headers=kept)


KEPT_HEADERS = frozenset({"retry-after", "www-authenticate", "allow"})


def error_event(error: GuanacoError) -> bytes:
    return b"data: " + _json(_error(error)) + b"\n\n"


def _error(error: GuanacoError) -> dict[str, Any]:
    kind = "invalid_request_error" if isinstance(error, InvalidInput | NotFound) else "api_error"
    if isinstance(error, Unavailable):
        kind = "overloaded_error"
    message = f"{error.detail} {error.hint}" if error.hint else error.detail
    return {"error": {"message": message, "type": kind, "param": None, "code": error.code}}


class _Writer:
    """Of one response: its id, its time and the model's name are the same in every chunk."""

    def __init__(self, request: ChatCompletionRequest | CompletionRequest) -> None:
        self._is_chat = isinstance(request, ChatCompletionRequest)
        self._has_usage = request.stream_options.include_usage
        self._is_first = True
        self._fields: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }

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
        said: dict[str, Any] = {"text": reply.content}
        if self._is_chat:
            said = {"message": {"role": "assistant", "content": reply.content, "refusal": None}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reply.finish_reason}
        kind = "chat.completion" if self._is_chat else "text_completion"
        body = {**self._fields, "object": kind, "choices": [choice], "usage": _usage(reply)}
        return _json(body | _ours(reply))

    def _delta(self, text: str) -> dict[str, Any]:
        if not self._is_chat:
            return {"text": text}
        role = {"role": "assistant"} if self._is_first else {}
        return {"delta": {**role, "content": text}}

    def _event(self, said: dict[str, Any], reply: Reply | None) -> bytes:
        reason = reply.finish_reason if reply else None
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return self._data({"choices": [choice]} | (_ours(reply) if reply else {}))

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


def _ours(reply: Reply) -> dict[str, Any]:
    """Of a recorded conversation, what a rating needs."""
    if reply.conversation_id is None:
        return {}
    return {"guanaco": {"conversation_id": reply.conversation_id, "message_id": reply.message_id}}
