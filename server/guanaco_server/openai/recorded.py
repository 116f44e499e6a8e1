"""Chats that are recorded: the first request opens a conversation, and later ones continue it by its id.

What is recorded is the truth. The official clients send the whole conversation each time, so what comes before the last
message must be what was said; it may also be left out. Nothing that a request says is dropped: it is honoured or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from guanaco.accounts import Role
from guanaco.chat import Bot, Conversation, ConversationRequest, MessageRequest, Reply, Sender, Turn
from guanaco.errors import InvalidInput
from guanaco.experiments import ParamChanges
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.replies import ReplyEvents, ReplyService
from guanaco_server.openai.schemas import ChatCompletionRequest

AUTO = "guanaco/auto"


class RecordedChats:
    def __init__(self, conversations: ConversationService, replies: ReplyService) -> None:
        self._conversations = conversations
        self._replies = replies

    async def send(
        self, account: Account, request: ChatCompletionRequest, changes: ParamChanges
    ) -> ReplyEvents:
        """The reply, whose parameters are ``changes``, with the conversation's id."""
        if account.role is Role.DEVELOPER:
            raise InvalidInput("Only an app's backend records conversations.")
        if request.model != AUTO or request.user is None:
            raise InvalidInput(
                f"A conversation that is recorded needs model {AUTO!r} and a user.",
                hint="Leave metadata.consent out to name a submission.",
            )
        conversation_id = request.metadata.conversation_id
        if conversation_id is None:
            conversation_id = await self._open(account, request, request.user)
        else:
            found = await self._conversations.of_user(account, conversation_id, request.user)
            _require_same(found, request)
        message = MessageRequest(content=request.turns[-1].content)
        events = await self._replies.send(account, conversation_id, message, changes, request.seed)
        return _named(events, conversation_id)

    async def _open(self, account: Account, request: ChatCompletionRequest, user: str) -> str:
        """A greeting may come first; InvalidInput for anything else that was said elsewhere."""
        *earlier, _ = request.turns
        if any(turn.sender is Sender.USER for turn in earlier) or len(earlier) > 1:
            raise InvalidInput(
                "A conversation that is recorded begins with the user's first message: what was said before cannot be rated as this model's.",
                hint="Send metadata.conversation_id to continue one, or leave metadata.consent out.",
            )
        opened = await self._conversations.open(
            account,
            ConversationRequest(
                user_id=user,
                bot=Bot(
                    name=request.metadata.bot_name,
                    memory=request.persona,
                    first_message=earlier[0].content if earlier else "",
                ),
                user_name=request.metadata.user_name,
                consent=True,
            ),
        )
        return opened.conversation_id


def _require_same(conversation: Conversation, request: ChatCompletionRequest) -> None:
    """InvalidInput where the request says something else than was recorded."""
    given = request.metadata.model_dump(exclude_unset=True)
    bot = conversation.bot
    for what, said, recorded in (
        ("The persona", request.persona or None, bot.memory),
        ("metadata.bot_name", given.get("bot_name"), bot.name),
        ("metadata.user_name", given.get("user_name"), conversation.user_name),
    ):
        if said is not None and said != recorded:
            raise InvalidInput(
                f"{what} of a conversation stays as it was.",
                hint="Leave it out, or open another conversation.",
            )
    *earlier, last = request.turns
    if earlier and not _ends_with(_recorded_turns(conversation, last), earlier):
        raise InvalidInput(
            "The messages before the last one are not what was said in the conversation.",
            hint="Leave them out, or send them as they were.",
        )


def _recorded_turns(conversation: Conversation, last: Turn) -> list[Turn]:
    """Without ``last``, where it is there already and waits for its answer."""
    greeting = conversation.bot.first_message
    turns = [Turn(sender=Sender.BOT, content=greeting)] if greeting else []
    turns += [
        Turn(sender=message.sender, content=message.content)
        for message in conversation.messages
        if not message.is_deleted
    ]
    return turns[:-1] if turns[-1:] == [last] else turns


def _ends_with(turns: Sequence[Turn], last: Sequence[Turn]) -> bool:
    return turns[-len(last) :] == last


async def _named(events: ReplyEvents, conversation_id: str) -> ReplyEvents:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Reply):
                event = event.model_copy(update={"conversation_id": conversation_id})
            yield event
