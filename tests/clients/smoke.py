"""A client that openapi-python-client generated, against a running platform: python smoke.py URL KEY."""

from __future__ import annotations

import sys
from http import HTTPStatus

from generated import AuthenticatedClient
from generated.api.accounts import accounts_list_keys, accounts_read_identity
from generated.api.chat import chat_messages, chat_open_conversation, chat_read_conversation
from generated.api.feedback import feedback_rate
from generated.models import (
    Bot,
    Conversation,
    ConversationOpened,
    ConversationRequest,
    ErrorBody,
    FeedbackRecorded,
    FeedbackRequest,
    Identity,
    MessageRequest,
    Reply,
    Role,
)


def main(url: str, key: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
    me = accounts_read_identity.sync(client=client)
    assert isinstance(me, Identity)
    assert me.role is Role.BACKEND

    asked = ConversationRequest(user_id="u1", bot=Bot(name="Luna"), consent=True)
    opened = chat_open_conversation.sync(client=client, body=asked)
    assert isinstance(opened, ConversationOpened)
    named = opened.conversation_id
    reply = chat_messages.sync(named, client=client, body=MessageRequest(content="Hello"))
    assert isinstance(reply, Reply)
    assert reply.content == "Hello from memory."
    read = chat_read_conversation.sync(named, client=client)
    assert isinstance(read, Conversation)
    assert [one.content for one in read.messages] == ["Hello", "Hello from memory."]
    rated = feedback_rate.sync(named, client=client, body=FeedbackRequest(thumbs_up=True))
    assert isinstance(rated, FeedbackRecorded)

    missing = chat_read_conversation.sync_detailed("conv_none", client=client)
    assert missing.status_code == HTTPStatus.NOT_FOUND
    assert isinstance(missing.parsed, ErrorBody)
    assert missing.parsed.error == "conversation_not_found"
    forbidden = accounts_list_keys.sync(client=client)
    assert isinstance(forbidden, ErrorBody)
    assert forbidden.error == "forbidden"


main(*sys.argv[1:])
print("every call was answered")
