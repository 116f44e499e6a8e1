"""Opens and reads conversations over HTTP. The routes that answer with a reply are in gateway/routes.py."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from guanaco.accounts import Role
from guanaco.chat import (
    ChoiceRequest,
    Conversation,
    ConversationChanges,
    ConversationOpened,
    ConversationPage,
    ConversationQuery,
    ConversationRequest,
    ConversationSummary,
    Message,
    MessageChanges,
    MessageRating,
)
from guanaco.competitions import AssignmentReplay
from guanaco.memory import ConversationMemory, MemoryCorrection
from guanaco.personas import ConversationPersona
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.editing import ConversationEditor
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.memory.service import MemoryService
from guanaco_server.chat.personas.reading import PersonaReader
from guanaco_server.http.routes import Routes


def router(
    conversations: ConversationService,
    editor: ConversationEditor,
    memory: MemoryService,
    personas: PersonaReader,
    auth: Auth,
) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["chat"])
    talker = auth.require(Role.BACKEND, Role.DEVELOPER)  # developers with their own submissions
    admin = auth.require(Role.ADMIN)

    @routes.post("/conversations", status_code=201)
    async def open_conversation(
        request: ConversationRequest, account: Account = talker
    ) -> ConversationOpened:
        return await conversations.open(account, request)

    @routes.get("/conversations")
    async def list_conversations(
        query: Annotated[ConversationQuery, Query()], account: Account = talker
    ) -> ConversationPage:
        """The account's own conversations, newest first; `?user_id=` for one user's."""
        return await editor.page(account, query)

    @routes.get("/conversations/{conversation_id}")
    async def read_conversation(conversation_id: str, account: Account = talker) -> Conversation:
        return await conversations.read(account, conversation_id)

    @routes.patch("/conversations/{conversation_id}")
    async def change_conversation(
        conversation_id: str, changes: ConversationChanges, account: Account = talker
    ) -> ConversationSummary:
        """Replace the app's notes."""
        return await editor.change(account, conversation_id, changes)

    @routes.patch("/conversations/{conversation_id}/messages/{message_id}")
    async def edit_message(
        conversation_id: str, message_id: str, changes: MessageChanges, account: Account = talker
    ) -> Message:
        """Replace a message's text; the model reads the new one from the next turn on."""
        return await editor.edit(account, conversation_id, message_id, changes)

    @routes.delete("/conversations/{conversation_id}/messages/{message_id}", status_code=204)
    async def delete_message(
        conversation_id: str,
        message_id: str,
        with_following: bool = False,
        account: Account = talker,
    ) -> None:
        """Delete a message for good; `?with_following=true` deletes all that follow too."""
        await editor.delete_message(
            account, conversation_id, message_id, with_following=with_following
        )

    @routes.put("/conversations/{conversation_id}/messages/{message_id}/rating")
    async def rate_message(
        conversation_id: str, message_id: str, rating: MessageRating, account: Account = talker
    ) -> Message:
        """Note what the user thought of one reply. It is kept beside the conversation's rating, and does not count for the leaderboard."""
        return await editor.rate_message(account, conversation_id, message_id, rating.thumbs_up)

    @routes.delete("/conversations/{conversation_id}/messages/{message_id}/rating")
    async def withdraw_message_rating(
        conversation_id: str, message_id: str, account: Account = talker
    ) -> Message:
        return await editor.rate_message(account, conversation_id, message_id, None)

    @routes.get("/conversations/{conversation_id}/swipes")
    async def list_swipes(conversation_id: str, account: Account = talker) -> list[Message]:
        """All replies to the last message, oldest first; `…/regenerate` makes another one."""
        return await editor.swipes(account, conversation_id)

    @routes.post("/conversations/{conversation_id}/choice")
    async def choose_reply(
        conversation_id: str, request: ChoiceRequest, account: Account = talker
    ) -> Message:
        """Go on with one of the swipes. The choice is kept as a judgement of the replies."""
        return await editor.choose(account, conversation_id, request.message_id)

    @routes.get("/conversations/{conversation_id}/memory")
    async def read_memory(conversation_id: str, account: Account = talker) -> ConversationMemory:
        """Return the summaries of older messages, and which of them were shown again."""
        return await memory.read(account, conversation_id)

    @routes.put("/conversations/{conversation_id}/memory")
    async def correct_memory(
        conversation_id: str, correction: MemoryCorrection, account: Account = talker
    ) -> ConversationMemory:
        """Replace all summaries so far; later ones go on from the new text."""
        return await memory.correct(account, conversation_id, correction)

    @routes.delete("/conversations/{conversation_id}/memory", status_code=204)
    async def erase_memory(conversation_id: str, account: Account = talker) -> None:
        """Forget what was said so far: it is neither summarized nor recalled. The messages stay."""
        await memory.erase(account, conversation_id)

    @routes.get("/conversations/{conversation_id}/persona")
    async def read_persona(conversation_id: str, account: Account = talker) -> ConversationPersona:
        """Return the persona that the prompts have, and what it was shortened from."""
        return await personas.read(account, conversation_id)

    @routes.get("/conversations/{conversation_id}/assignment")
    async def read_assignment(conversation_id: str, _: Account = admin) -> AssignmentReplay:
        """Return how the conversation got its submission, and whether replaying the recorded choice gives the same one."""
        return await conversations.assignment(conversation_id)

    return routes
