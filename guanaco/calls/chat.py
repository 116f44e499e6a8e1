"""Calls that talk to a model: conversations of users, and previews of a developer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import BaseModel

from guanaco.calls.wire import (
    API,
    REPLY_TIMEOUT_S,
    Call,
    StreamCall,
    get,
    keyed,
    of_conversation,
    of_submission,
    post,
    to_json,
)
from guanaco.chat import (
    Bot,
    Conversation,
    ConversationOpened,
    ConversationRequest,
    MessageRequest,
    PreviewRequest,
    RegenerateRequest,
    Reply,
    Token,
    Turn,
)
from guanaco.competitions import AssignmentReplay
from guanaco.contract import reader
from guanaco.errors import GuanacoError
from guanaco.sse import ServerEvent

LAST_EVENT = "done"


def preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> Call[Reply]:
    """What your own submission answers, and the very prompt it got. Nothing is recorded."""
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name)
    return _reply(of_submission(submission_id, "preview"), request)


def stream_preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> StreamCall[Token | Reply]:
    """``preview``, token by token; the whole Reply comes last."""
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name, stream=True)
    return _reply_stream(of_submission(submission_id, "preview"), request)


def open_conversation(
    user_id: str,
    bot: Bot,
    *,
    consent: bool,
    user_name: str = "You",
    idempotency_key: str | None = None,
) -> Call[ConversationOpened]:
    """Begin a conversation of a consenting user with a submission that the platform chooses. Backend."""
    request = ConversationRequest(user_id=user_id, bot=bot, user_name=user_name, consent=consent)
    return post("/conversations", ConversationOpened, request, idempotency_key=idempotency_key)


def conversation(conversation_id: str) -> Call[Conversation]:
    """A conversation with its messages. Backend."""
    return get(of_conversation(conversation_id), Conversation)


def send(conversation_id: str, content: str, *, idempotency_key: str | None = None) -> Call[Reply]:
    """Say something; the answer is the bot's whole reply. With a key it is one turn, however often it is sent. Backend."""
    request = MessageRequest(content=content)
    return _reply(of_conversation(conversation_id, "messages"), request, idempotency_key)


def stream_send(
    conversation_id: str, content: str, *, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    """``send``, token by token; the whole Reply comes last. Backend."""
    request = MessageRequest(content=content, stream=True)
    return _reply_stream(of_conversation(conversation_id, "messages"), request, idempotency_key)


def regenerate(conversation_id: str, *, idempotency_key: str | None = None) -> Call[Reply]:
    """Another reply in place of the last one. Backend."""
    path = of_conversation(conversation_id, "regenerate")
    return _reply(path, RegenerateRequest(), idempotency_key)


def stream_regenerate(
    conversation_id: str, *, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    """``regenerate``, token by token; the whole Reply comes last. Backend."""
    path = of_conversation(conversation_id, "regenerate")
    return _reply_stream(path, RegenerateRequest(stream=True), idempotency_key)


def assignment(conversation_id: str) -> Call[AssignmentReplay]:
    """How a conversation got its submission, and whether the same choice gives it again. Admin."""
    return get(
        of_conversation(conversation_id, "assignment"),
        AssignmentReplay,
    )


def _reply(path: str, body: BaseModel, idempotency_key: str | None = None) -> Call[Reply]:
    return post(path, Reply, body, timeout_s=REPLY_TIMEOUT_S, idempotency_key=idempotency_key)


def _reply_stream(
    path: str, body: BaseModel, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    return StreamCall(
        method="POST",
        path=f"{API}{path}",
        json=to_json(body),
        headers=keyed(idempotency_key),
        parse=parse_reply_event,
        must_end_with=LAST_EVENT,
    )


def parse_reply_event(event: ServerEvent) -> Token | Reply | None:
    """Read an event of a streamed reply: ``token`` again and again, then ``done`` or ``error``.

    Raises the error that an ``error`` event stands for. None for an event that only a newer version knows.
    """
    if event.event == "error":
        raise GuanacoError.from_wire(json.loads(event.data))
    if event.event == LAST_EVENT:
        return reader(Reply).from_json(event.data)
    return reader(Token).from_json(event.data) if event.event == "token" else None
