"""OpenAI's completions over the same path as every reply: routing, rendering, replicas, streaming.

``guanaco/auto`` is any submission that takes conversations and has room; requests that begin alike go to the same one,
so that a conversation keeps its model. A chat with ``metadata.consent`` "true" is a conversation like any other: assigned
by the competition's policy, recorded, and open to a rating (recorded.py).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from hashlib import blake2b

from guanaco.accounts import Role
from guanaco.chat import Bot, Reply, Sender
from guanaco.errors import MessageTooLong, NoModelAvailable, SubmissionNotFound
from guanaco.experiments import Overrides, ParamChanges
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.generation import Generated, GeneratedPieces, ReplyGenerator
from guanaco_server.chat.gateway.replies import ReplyEvents, ReplyService
from guanaco_server.deployments.model_server import Generation
from guanaco_server.experiments.variants import apply_variant
from guanaco_server.openai.recorded import AUTO, RecordedChats
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.policy import LiveSubmission
from guanaco_server.routing.rendezvous import rendezvous
from guanaco_server.routing.service import RoutingService

PROMPT_KEY_CHARS = 256  # of a prompt, which grows: as much of its beginning as tells some apart
MOST_TOKENS = 4_096  # that any submission may reply with

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
        self._recorded = RecordedChats(conversations, replies)
        self._generator = generator
        self._prompts = prompts

    def models(self, account: Account) -> list[str]:
        """What the caller may name as a model."""
        live = [live.serving for live in self._routing.live()]
        own = account.role is Role.DEVELOPER
        names = [one.id for one in live if not own or one.account_id == account.id]
        return names if own else [AUTO, *names]

    def require_model(self, account: Account, model: str) -> str:
        """The model's name; SubmissionNotFound for what is not there or not the caller's."""
        if model not in self.models(account):
            raise SubmissionNotFound(model)
        return model

    async def chat(self, account: Account, request: ChatCompletionRequest) -> ReplyEvents:
        if request.metadata.consent == "true":
            return await self._recorded.send(account, request, _changes(request))
        bot = Bot(name=request.metadata.bot_name, memory=request.persona)
        first = next(turn.content for turn in request.turns if turn.sender is Sender.USER)
        key = _key(account.id, request.user or "", request.persona, first)
        live = _changed(await self._live(account, request.model, key), request)
        name, turns = request.metadata.user_name, request.turns
        pieces = await self._generator.generate(live, bot, name, turns, key, seed=request.seed)
        return _unrecorded(pieces)

    async def complete(self, account: Account, request: CompletionRequest) -> ReplyEvents:
        key = _key(account.id, request.user or "", request.prompt[:PROMPT_KEY_CHARS])
        live = _changed(await self._live(account, request.model, key), request)
        counter = await self._prompts.tokenizers.counter(live.serving.artifact_key)
        room = live.serving.params.max_input_tokens
        if (tokens := await asyncio.to_thread(counter.whole, request.prompt)) > room:
            raise MessageTooLong(
                f"The prompt has {tokens:,} tokens; this model is given {room:,}.",
                hint="Shorten it.",
            )
        generation = Generation(
            live.serving.id, request.prompt, live.serving.params, seed=request.seed
        )
        return _unrecorded(self._generator.complete(live, generation, key))

    async def _live(self, account: Account, model: str, key: str) -> LiveSubmission:
        """What the model's name means to the caller; of several that have room, the key's."""
        if self.require_model(account, model) == AUTO:
            lives = self._routing.live()
            roomy = [one.serving.id for one in lives if self._routing.can_take(one.serving.id)]
            found = rendezvous(key, roomy or [one.serving.id for one in lives if not one.endpoints])
            if not found:
                raise NoModelAvailable(are_full=bool(lives))
            model = found[0]
        return await self._routing.target(model)


def _key(*parts: str) -> str:
    """What begins alike has the same one; short, for it is hashed again and again."""
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _changes(request: Request) -> ParamChanges:
    """Of the parameters, those that the request names."""
    limit = request.token_limit
    return ParamChanges(
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        stopping_words=request.stop,
        max_output_tokens=min(limit, MOST_TOKENS) if limit else None,
        best_of=1 if isinstance(request, CompletionRequest) else None,
    )


def _changed(live: LiveSubmission, request: Request) -> LiveSubmission:
    """The reply's length stays within what the submission's server was sized for."""
    overrides = Overrides(params=_changes(request))
    return replace(live, serving=apply_variant(live.serving, overrides))


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
