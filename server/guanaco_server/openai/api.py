"""OpenAI's API over HTTP: /v1/models, /v1/completions, /v1/chat/completions, for the official clients as they are."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from guanaco.accounts import Role
from guanaco.errors import SubmissionNotFound
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.gateway.replies import ReplyEvents
from guanaco_server.chat.gateway.routes import ReplyRoute
from guanaco_server.openai import wire
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.openai.service import OpenAiService


def router(openai: OpenAiService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["openai"])
    anyone = auth.require(*Role)

    @routes.get("/models")
    async def list_models(account: Account = anyone) -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in openai.models(account)]}

    @routes.get("/models/{model:path}", response_model=None)
    async def read_model(model: str, account: Account = anyone) -> Response:
        try:
            return JSONResponse(_model(openai.require_model(account, model)))
        except SubmissionNotFound as error:
            return wire.problem(error)

    return routes


def completion_routes(openai: OpenAiService) -> tuple[ReplyRoute, ...]:
    async def chat(account: Account, _: str, request: ChatCompletionRequest) -> ReplyEvents:
        return await openai.chat(account, request)

    async def complete(account: Account, _: str, request: CompletionRequest) -> ReplyEvents:
        return await openai.complete(account, request)

    anyone = tuple(Role)
    return (
        ReplyRoute("/v1/chat/completions", anyone, ChatCompletionRequest, "OpenAI's chat completion", chat, wire.encoder, wire.problem),
        ReplyRoute("/v1/completions", anyone, CompletionRequest, "OpenAI's completion", complete, wire.encoder, wire.problem),
    )  # fmt: skip


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "guanaco"}
