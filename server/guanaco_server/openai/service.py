"""OpenAI's completions over the same path as every reply: routing, rendering, replicas, streaming.

``guanaco/auto`` is any submission that takes conversations; requests that begin alike go to the same one, so that a
conversation keeps its model. A chat with ``metadata.consent`` "true" is a conversation like any other: assigned by the
competition's policy, recorded, and open to a rating; its id comes back, and ``metadata.conversation_id`` continues it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

from guanaco.accounts import Role
from guanaco.chat import (
    Bot,
    ConversationRequest,
    MessageRequest,
    Reply,
    Sender,
    Turn,
)
from guanaco.errors import InvalidInput, MessageTooLong, NoModelAvailable, SubmissionNotFound
from guanaco.submissions import GenerationParams
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import ConversationService
from guanaco_server.chat.generation import Generated, GeneratedPieces, ReplyGenerator
from guanaco_server.chat.replies import ReplyEvents, ReplyService
from guanaco_server.deployments.model_server import Generation
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.policy import LiveSubmission
from guanaco_server.routing.rendezvous import rendezvous
from guanaco_server.routing.service import RoutingService

AUTO = "guanaco/auto"
KEY_CHARS = 256  # of a prompt: as much of its beginning as tells conversations apart

Request = ChatCompletionRequest | CompletionRequest


class OpenAiService:
    def __init__(
        self,
        routing: RoutingService,
        conversations: ConversationService,
        replies: ReplyService,
        generator: ReplyGenerator,
        prompts: PromptService,
    ) -> None:
        self._routing = routing
        self._conversations = conversations
        self._replies = replies
        self._generator = generator
        self._prompts = prompts

    def models(self, account: Account) -> list[str]:
        """What the caller may name as a model."""
        live = [live.serving for live in self._routing.live()]
        own = account.role is Role.DEVELOPER
        names = [one.id for one in live if not own or one.account_id == account.id]
        return names if own else [AUTO, *names]

    async def chat(self, account: Account, request: ChatCompletionRequest) -> ReplyEvents:
        if request.metadata.consent == "true":
            return await self._recorded(account, request)
        bot, turns = _conversation(request)
        key = f"{account.id} {request.user} {bot.memory[:KEY_CHARS]} {turns[0].content[:KEY_CHARS]}"
        live = _with_params(await self._live(account, request.model, key), request)
        name = request.metadata.user_name
        return _unrecorded(await self._generator.generate(live, bot, name, turns, key))

    async def complete(self, account: Account, request: CompletionRequest) -> ReplyEvents:
        key = f"{account.id} {request.user} {request.prompt[:KEY_CHARS]}"
        live = _with_params(await self._live(account, request.model, key), request)
        counter = await self._prompts.tokenizers.counter(live.serving.artifact_key)
        room = live.serving.params.max_input_tokens
        if (tokens := await asyncio.to_thread(counter.whole, request.prompt)) > room:
            raise MessageTooLong(
                f"The prompt has {tokens:,} tokens; this model is given {room:,}.",
                hint="Shorten it.",
            )
        generation = Generation(live.serving.id, request.prompt, live.serving.params)
        return _unrecorded(self._generator.complete(live, generation, key))

    async def _live(self, account: Account, model: str, key: str) -> LiveSubmission:
        """What the model's name means to the caller; SubmissionNotFound for what is not there or not the caller's."""
        allowed = self.models(account)
        if model not in allowed:
            raise SubmissionNotFound(model)
        if model == AUTO:
            lives = self._routing.live()
            ready = [live.serving.id for live in lives if live.endpoints]
            found = rendezvous(key, ready or [live.serving.id for live in lives])
            if not found:
                raise NoModelAvailable
            model = found[0]
        return await self._routing.target(model)

    async def _recorded(self, account: Account, request: ChatCompletionRequest) -> ReplyEvents:
        if account.role is Role.DEVELOPER:
            raise InvalidInput("Only an app's backend records conversations.")
        if request.model != AUTO or request.user is None:
            raise InvalidInput(
                f"A conversation that is recorded needs model {AUTO!r} and a user.",
                hint="Leave metadata.consent out to name a submission.",
            )
        bot, turns = _conversation(request)
        conversation_id = request.metadata.conversation_id
        if conversation_id is None:
            opened = await self._conversations.open(
                account,
                ConversationRequest(
                    user_id=request.user,
                    bot=bot,
                    user_name=request.metadata.user_name,
                    consent=True,
                ),
            )
            conversation_id = opened.conversation_id
        message = MessageRequest(content=turns[-1].content)
        return _named(await self._replies.send(account, conversation_id, message), conversation_id)


def _conversation(request: ChatCompletionRequest) -> tuple[Bot, list[Turn]]:
    """System messages are the persona; InvalidInput unless the last message is the user's."""
    memory = "\n".join(m.content for m in request.messages if m.role in ("system", "developer"))
    turns = [
        Turn(sender=Sender.USER if m.role == "user" else Sender.BOT, content=m.content)
        for m in request.messages
        if m.role in ("user", "assistant")
    ]
    if not turns or turns[-1].sender is not Sender.USER or not turns[-1].content:
        raise InvalidInput("The last message must be the user's, and not empty.")
    return Bot(name=request.metadata.bot_name, memory=memory), turns


def _with_params(live: LiveSubmission, request: Request) -> LiveSubmission:
    """The submission's own parameters, but for those that the request names."""
    limit = request.max_tokens
    if isinstance(request, ChatCompletionRequest):
        limit = request.max_completion_tokens or limit
    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "stopping_words": request.stop,
        "max_output_tokens": limit,
        "best_of": 1 if isinstance(request, CompletionRequest) else None,
    }
    values = {name: value for name, value in given.items() if value is not None}
    if not values:
        return live
    params = GenerationParams.model_validate(live.serving.params.model_dump() | values)
    return replace(live, serving=replace(live.serving, params=params))


async def _unrecorded(pieces: GeneratedPieces) -> ReplyEvents:
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, Generated):
                yield Reply(
                    message_id=None,
                    content=piece.content,
                    finish_reason=piece.finish_reason,
                    usage=piece.usage,
                    timings=piece.timings,
                )
            else:
                yield piece


async def _named(events: ReplyEvents, conversation_id: str) -> ReplyEvents:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Reply):
                event = event.model_copy(update={"conversation_id": conversation_id})
            yield event
