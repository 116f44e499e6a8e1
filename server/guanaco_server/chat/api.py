"""Opens and reads conversations over HTTP. The routes that answer with a reply are in gateway/routes.py."""

from __future__ import annotations

from fastapi import APIRouter

from guanaco.accounts import Role
from guanaco.chat import Conversation, ConversationOpened, ConversationRequest
from guanaco.competitions import AssignmentReplay
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import ConversationService


def router(conversations: ConversationService, auth: Auth) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["chat"])
    backend = auth.require(Role.BACKEND)
    admin = auth.require(Role.ADMIN)

    @routes.post("/conversations", status_code=201)
    async def open_conversation(
        request: ConversationRequest, account: Account = backend
    ) -> ConversationOpened:
        return await conversations.open(account, request)

    @routes.get("/conversations/{conversation_id}")
    async def read_conversation(conversation_id: str, account: Account = backend) -> Conversation:
        return await conversations.read(account, conversation_id)

    @routes.get("/conversations/{conversation_id}/assignment")
    async def read_assignment(conversation_id: str, _: Account = admin) -> AssignmentReplay:
        """How the conversation got its submission, and whether replaying the recorded choice gives the same one."""
        return await conversations.assignment(conversation_id)

    return routes
