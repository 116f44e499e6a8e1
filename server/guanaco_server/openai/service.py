"""OpenAI's completions, over the same path as every reply: routing, rendering, replicas, streaming.

``guanaco/auto`` stands for any submission that takes conversations and has room. Requests that begin with the same text
go to the same submission, so that a conversation keeps its model.

A chat with ``metadata.consent`` "true" is recorded. Its first request opens a conversation, which the policy of
``metadata.competition`` assigns and which can be rated; later requests continue it by its id. The official clients send the whole
conversation each time: what comes before the last message must be what was recorded, or be left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b

from guanaco.accounts import Role
from guanaco.chat import (
    Bot,
    Conversation,
    ConversationOpened,
    ConversationRequest,
    MessageRequest,
    Reply,
    Sender,
    Turn,
)
from guanaco.competitions import OPEN
from guanaco.errors import (
    Forbidden,
    InvalidInput,
    MessageTooLong,
    NoModelAvailable,
    SubmissionNotFound,
)
from guanaco.experiments import Overrides, ParamChanges
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.generation import Generated, GeneratedPieces, ReplyGenerator
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.chat.gateway.replies import ReplyEvents, ReplyService
from guanaco_server.deployments.model_servers.model_server import Generation, cache_salt_of
from guanaco_server.experiments.variants import apply_variant
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.routing.prefixes import shared_prefix
from guanaco_server.routing.replicas import rendezvous
from guanaco_server.routing.service import LiveSubmission, RoutingService
from guanaco_server.submissions.aliases.service import AliasService
from guanaco_server.tokenization.service import Tokenizers

AUTO = "guanaco/auto"
AUTO_SINCE = datetime(2026, 11, 21, tzinfo=UTC)  # when the name came to be
MOST_TRIES = 8  # models that a request may not fit
PROMPT_KEY_CHARS = 256  # of the beginning of a prompt, which may grow

Request = ChatCompletionRequest | CompletionRequest


@dataclass(frozen=True)
class NamedModel:
    id: str
    owner: str
    created_at: datetime


@dataclass(frozen=True)
class Answer:
    """A reply that begins, and the id of the submission that gives it."""

    model: str
    events: ReplyEvents


class OpenAiService:
    def __init__(
        self,
        routing: RoutingService,
        conversations: ConversationService,
        replies: ReplyService,
        generator: ReplyGenerator,
        tokenizers: Tokenizers,
        aliases: AliasService,
    ) -> None:
        self._routing = routing
        self._aliases = aliases
        self._recorded = RecordedChats(conversations, replies, aliases)
        self._generator = generator
        self._tokenizers = tokenizers

    def models(self, account: Account) -> list[NamedModel]:
        """Return the models that the caller may name."""
        own = account.role is Role.DEVELOPER
        named = [
            NamedModel(one.id, one.developer, one.created_at)
            for one in (live.serving for live in self._routing.live())
            if not own or one.account_id == account.id
        ]
        return named if own else [NamedModel(AUTO, "guanaco", AUTO_SINCE), *named]

    async def find_model(self, account: Account, named: str) -> NamedModel:
        """Find a model by its id or alias; SubmissionNotFound for what is not there or not the caller's, AmbiguousAlias, Forbidden for a developer's auto."""
        return self._require_model(account, await self._aliases.resolve(account, named))

    def _require_model(self, account: Account, model: str) -> NamedModel:
        if model == AUTO and account.role is Role.DEVELOPER:
            raise Forbidden(
                f"A developer's key talks to its own submissions only, not to {AUTO}.",
                hint=f"Name one as `model`: `GET /v1/models` lists them. A backend's key may name {AUTO}.",
            )
        found = next((one for one in self.models(account) if one.id == model), None)
        if found is None:
            raise SubmissionNotFound(model)
        return found

    async def chat(self, account: Account, request: ChatCompletionRequest) -> Answer:
        if request.metadata.consent == "true":
            return await self._recorded.send(account, request, request.changes())
        model = await self._aliases.resolve(account, request.model)
        bot = Bot(name=request.metadata.bot_name, memory=request.persona)
        first = next(turn.content for turn in request.turns if turn.sender is Sender.USER)
        key = _key(account.id, request.user or "", request.persona, first)
        asker = Asker(account.id, request.user or "")
        name, turns = request.metadata.user_name, request.turns
        prefix = shared_prefix(account.id, bot)

        async def ask(live: LiveSubmission) -> GeneratedPieces:
            return await self._generator.generate(
                live, bot, name, turns, key, asker, seed=request.seed, prefix=prefix
            )

        return await self._first_that_fits(account, request, model, key, ask)

    async def complete(self, account: Account, request: CompletionRequest) -> Answer:
        model = await self._aliases.resolve(account, request.model)
        key = _key(account.id, request.user or "", request.prompt[:PROMPT_KEY_CHARS])
        asker = Asker(account.id, request.user or "")

        async def ask(live: LiveSubmission) -> GeneratedPieces:
            room = live.serving.params.max_input_tokens
            tokens = await self._tokenizers.whole(live.serving.artifact_key, request.prompt)
            if tokens > room:
                raise MessageTooLong(
                    f"The prompt has {tokens:,} tokens; this model is given {room:,}.",
                    hint="Shorten it.",
                )
            generation = Generation(
                live.model,
                request.prompt,
                live.serving.params,
                seed=request.seed,
                cache_salt=cache_salt_of(live.serving.developer, account.id),
            )
            return self._generator.complete(live, generation, key, asker)

        return await self._first_that_fits(account, request, model, key, ask)

    async def _first_that_fits(
        self,
        account: Account,
        request: Request,
        model: str,
        key: str,
        ask: Callable[[LiveSubmission], Awaitable[GeneratedPieces]],
    ) -> Answer:
        """Return the answer of the named model, or of the first one for the key whose input the request fits; MessageTooLong."""
        problem: MessageTooLong | None = None
        for name in self._names(account, model, key)[:MOST_TRIES]:
            live = _changed(await self._routing.target(name), request)
            try:
                return Answer(name, _unrecorded(await ask(live)))
            except MessageTooLong as error:
                problem = problem or error
        raise problem or NoModelAvailable

    def _names(self, account: Account, model: str, key: str) -> list[str]:
        """Return the submissions that a model's name means to the caller, in the key's order: those with room, or else those that are awake."""
        if self._require_model(account, model).id != AUTO:
            return [model]
        lives = self._routing.live()
        roomy = [one for one in lives if self._routing.can_take(one.serving.id)]
        awake = roomy or [one for one in lives if one.endpoints]
        return rendezvous(key, [one.serving.id for one in awake or lives])


def _key(*parts: str) -> str:
    """Return a key that is the same for chats with the same beginning; it is short, since it is hashed again and again."""
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _changed(live: LiveSubmission, request: Request) -> LiveSubmission:
    """The reply's length stays within what the submission's server was sized for."""
    overrides = Overrides(params=request.changes())
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


class RecordedChats:
    def __init__(
        self, conversations: ConversationService, replies: ReplyService, aliases: AliasService
    ) -> None:
        self._aliases = aliases
        self._conversations = conversations
        self._replies = replies

    async def send(
        self, account: Account, request: ChatCompletionRequest, changes: ParamChanges
    ) -> Answer:
        """Return the reply, whose parameters are ``changes``, with the conversation's id."""
        if request.user is None:
            raise InvalidInput(
                "A conversation that is recorded needs a user.",
                hint="Send `user`, the app's own id, or leave metadata.consent out.",
            )
        found: Conversation | ConversationOpened
        if request.metadata.conversation_id is None:
            found = await self._open(account, request, request.user)
        else:
            named = request.metadata.conversation_id
            found = await self._conversations.of_user(account, named, request.user)
            _require_same(found, request)
            await self._require_model(account, found, request.model)
        message = MessageRequest(content=request.turns[-1].content)
        events = await self._replies.send(
            account, found.conversation_id, message, changes, request.seed
        )
        return Answer(found.submission_id, _named(events, found.conversation_id))

    async def _require_model(self, account: Account, found: Conversation, model: str) -> None:
        if model != AUTO and await self._aliases.resolve(account, model) != found.submission_id:
            raise InvalidInput(
                f"The conversation talks to {found.submission_id}, and keeps its model.",
                hint=f"Send model {AUTO!r}, or open another conversation.",
            )

    async def _open(
        self, account: Account, request: ChatCompletionRequest, user: str
    ) -> ConversationOpened:
        """A greeting may come first; InvalidInput for anything else that was said elsewhere."""
        *earlier, _ = request.turns
        if any(turn.sender is Sender.USER for turn in earlier) or len(earlier) > 1:
            raise InvalidInput(
                "A conversation that is recorded begins with the user's first message: what was said before cannot be rated as this model's.",
                hint="Send metadata.conversation_id to continue one, or leave metadata.consent out.",
            )
        competition = request.metadata.competition
        if request.model != AUTO and competition not in (None, OPEN):
            raise InvalidInput(
                "A conversation with a chosen model takes part in no competition.",
                hint=f"Send model {AUTO!r}, or leave metadata.competition out.",
            )
        return await self._conversations.open(
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
                competition=competition or OPEN,
                model=None if request.model == AUTO else request.model,
            ),
            may_shorten=False,  # a client sends the whole persona again with each request
        )


def _require_same(conversation: Conversation, request: ChatCompletionRequest) -> None:
    """InvalidInput where the request says something else than was recorded."""
    given = request.metadata.model_dump(exclude_unset=True)
    bot = conversation.bot
    for what, requested, recorded in (
        ("The persona", request.persona or None, bot.memory),
        ("metadata.bot_name", given.get("bot_name"), bot.name),
        ("metadata.user_name", given.get("user_name"), conversation.user_name),
        ("metadata.competition", given.get("competition"), conversation.competition),
    ):
        if requested is not None and requested != recorded:
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
    """Return the recorded turns, without ``last`` if it was recorded already and waits for its answer."""
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
