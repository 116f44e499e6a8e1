"""Conversations over HTTP: replies whole, or streamed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Response

from guanaco.accounts import Role
from guanaco.chat import (
    Conversation,
    ConversationOpened,
    ConversationRequest,
    MessageRequest,
    PreviewRequest,
    RegenerateRequest,
    Reply,
    Token,
)
from guanaco.errors import GuanacoError
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import ConversationService
from guanaco_server.chat.previews import PreviewService
from guanaco_server.chat.replies import ReplyEvents, ReplyService
from guanaco_server.http_errors import internal_fault
from guanaco_server.sse import encode_event, event_stream


def router(
    conversations: ConversationService, replies: ReplyService, previews: PreviewService, auth: Auth
) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["chat"])
    backend = auth.require(Role.BACKEND)
    developer = auth.require(Role.DEVELOPER)

    @routes.post("/conversations", status_code=201)
    async def open_conversation(
        request: ConversationRequest, account: Account = backend
    ) -> ConversationOpened:
        return await conversations.open(account, request)

    @routes.get("/conversations/{conversation_id}")
    async def read_conversation(conversation_id: str, account: Account = backend) -> Conversation:
        return await conversations.read(account, conversation_id)

    @routes.post("/conversations/{conversation_id}/messages", response_model=Reply)
    async def send_message(
        conversation_id: str, request: MessageRequest, account: Account = backend
    ) -> Reply | Response:
        return await _answer(await replies.send(account, conversation_id, request), request.stream)

    @routes.post("/conversations/{conversation_id}/regenerate", response_model=Reply)
    async def regenerate(
        conversation_id: str, request: RegenerateRequest | None = None, account: Account = backend
    ) -> Reply | Response:
        stream = request is not None and request.stream
        return await _answer(await replies.regenerate(account, conversation_id), stream)

    @routes.post("/submissions/{submission_id}/preview", response_model=Reply)
    async def preview(
        submission_id: str, request: PreviewRequest, account: Account = developer
    ) -> Reply | Response:
        events = await previews.preview(account, submission_id, request)
        return await _answer(events, request.stream)

    return routes


async def _answer(events: ReplyEvents, stream: bool) -> Reply | Response:
    """Whole, or streamed: then the first event is awaited before the status is sent, so that an early fault has a status of its own."""
    if not stream:
        return await _last(events)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    return event_stream(_encoded(first, events))


async def _last(events: ReplyEvents) -> Reply:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Reply):
                return event
    raise AssertionError("a reply ends with a Reply or an error")


async def _encoded(first: Token | Reply, events: ReplyEvents) -> AsyncIterator[bytes]:
    async with aclosing(events):
        try:
            yield _encode(first)
            async for event in events:
                yield _encode(event)
        except GuanacoError as error:
            yield encode_event("error", error.to_wire())
        except Exception as error:  # noqa: BLE001 - the status is sent already: the stream itself has to say it
            yield encode_event("error", internal_fault("a streamed reply", error).to_wire())


def _encode(event: Token | Reply) -> bytes:
    return encode_event("done" if isinstance(event, Reply) else "token", event)
