"""Calls that talk to a model: conversations of users, and previews of a developer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from guanaco.calls.wire import (
    API,
    REPLY_TIMEOUT_S,
    Call,
    StreamCall,
    delete,
    get,
    keyed,
    of_conversation,
    of_submission,
    patch,
    post,
    put,
    segment,
    to_json,
)
from guanaco.chat import (
    Assignment,
    Bot,
    ChoiceRequest,
    ContinueRequest,
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
    MessageRequest,
    PreviewRequest,
    RegenerateRequest,
    Reply,
    Token,
    Turn,
)
from guanaco.competitions import OPEN, AssignmentReplay
from guanaco.contract import reader
from guanaco.errors import GuanacoError
from guanaco.memory import ConversationMemory, MemoryCorrection
from guanaco.personas import ConversationPersona
from guanaco.sse import ServerEvent

LAST_EVENT = "done"


def preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> Call[Reply]:
    """Ask your own submission, and see the very prompt it got. Nothing is recorded.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        bot: The bot that the user talks with.
        turns: What was said so far, oldest first.
        user_name: What the bot calls the user.

    Returns:
        The Reply.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name)
    return _reply(of_submission(submission_id, "preview"), request)


def stream_preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> StreamCall[Token | Reply]:
    """Do as ``preview``, token by token; the whole Reply comes last.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        bot: The bot that the user talks with.
        turns: What was said so far, oldest first.
        user_name: What the bot calls the user.

    Returns:
        The Token or Reply objects, one after another.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name, stream=True)
    return _reply_stream(of_submission(submission_id, "preview"), request)


def open_conversation(
    user_id: str,
    bot: Bot | None = None,
    *,
    consent: bool,
    character: str | None = None,
    greeting: int | None = None,
    remember: bool = False,
    user_name: str = "You",
    competition: str = OPEN,
    external_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    history: Sequence[Turn] = (),
    model: str | None = None,
    idempotency_key: str | None = None,
) -> Call[ConversationOpened]:
    """Begin a conversation of a consenting user with a submission that the platform chooses. Backend.

    Args:
        user_id: The app's own id of the user.
        bot: Whom the user talks to, where no character is named.
        consent: Whether the user agreed to talk to an experimental model.
        character: The id of a stored character, or a version of it as ``ID@3``.
        greeting: Which of the character's greetings is the first message; -1 for none.
        remember: Whether the character is to know what it remembers of the user's last conversation with it.
        user_name: What the character calls the user.
        competition: The id of the competition that assigns a submission, and in which the rating counts.
        external_id: The app's own id of the conversation. Opening it again gives the same one.
        metadata: The app's own notes.
        history: What was said before, elsewhere.
        model: The id or alias of the submission to talk to, where the key may choose: a developer's own, and any for a
            backend whose key an admin has allowed it. It counts for no leaderboard.
        idempotency_key: With a key, the request is sent again when the connection breaks, and done once.

    Returns:
        The ConversationOpened.

    Raises:
        ConsentRequired: ``consent`` is not true.
        CompetitionNotFound: There is no such competition.
        CompetitionClosed: The competition does not run now.
        NoModelAvailable: No submission takes conversations now.
    """
    request = ConversationRequest(
        user_id=user_id,
        bot=bot,
        character=character,
        greeting=greeting,
        remember=remember,
        user_name=user_name,
        consent=consent,
        competition=competition,
        external_id=external_id,
        metadata=dict(metadata or {}),
        history=list(history),
        model=model,
    )
    return post("/conversations", ConversationOpened, request, idempotency_key=idempotency_key)


def conversation(conversation_id: str) -> Call[Conversation]:
    """Read a conversation with its messages. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        The Conversation, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id), Conversation)


def conversation_page(
    *,
    user_id: str | None = None,
    external_id: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Call[ConversationPage]:
    """List one page of your app's conversations, newest first. Backend.

    Args:
        user_id: The app's own id of the user.
        external_id: The app's own id of the conversation.
        cursor: The ``next_cursor`` of the page before; None for the first page.
        limit: The most that are returned.

    Returns:
        The ConversationPage.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    query = ConversationQuery(user_id=user_id, external_id=external_id, cursor=cursor, limit=limit)
    params = query.model_dump(mode="json", exclude_none=True)
    return get(
        "/conversations",
        ConversationPage,
        params={name: str(value) for name, value in params.items()},
    )


def note_metadata(conversation_id: str, metadata: Mapping[str, str]) -> Call[ConversationSummary]:
    """Replace your app's notes of a conversation. Backend.

    Args:
        conversation_id: The conversation's id.
        metadata: The app's own notes.

    Returns:
        The ConversationSummary.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    changes = ConversationChanges(metadata=dict(metadata))
    return patch(of_conversation(conversation_id), ConversationSummary, changes)


def delete_conversation(conversation_id: str) -> Call[None]:
    """Delete a conversation for good, with its messages and its rating. Backend.

    Args:
        conversation_id: The conversation's id.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return delete(of_conversation(conversation_id))


def edit_message(conversation_id: str, message_id: str, content: str) -> Call[Message]:
    """Replace a message's text. Backend.

    Args:
        conversation_id: The conversation's id.
        message_id: The message's id.
        content: What the user says.

    Returns:
        The Message, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "messages", segment(message_id))
    return patch(path, Message, MessageChanges(content=content))


def delete_message(
    conversation_id: str, message_id: str, *, with_following: bool = False
) -> Call[None]:
    """Delete a message for good, and on request all that follow. Backend.

    Args:
        conversation_id: The conversation's id.
        message_id: The message's id.
        with_following: Whether all later messages go too.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "messages", segment(message_id))
    return delete(path, params={"with_following": "true"} if with_following else {})


def rate_message(conversation_id: str, message_id: str, thumbs_up: bool) -> Call[Message]:
    """Note what the user thought of one reply; it does not count for the leaderboard. Backend.

    Args:
        conversation_id: The conversation's id.
        message_id: The message's id.
        thumbs_up: Whether the user liked it.

    Returns:
        The Message, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "messages", segment(message_id), "rating")
    return put(path, Message, MessageRating(thumbs_up=thumbs_up))


def withdraw_message_rating(conversation_id: str, message_id: str) -> Call[Message]:
    """Take back what the user thought of one reply. Backend.

    Args:
        conversation_id: The conversation's id.
        message_id: The message's id.

    Returns:
        The Message, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "messages", segment(message_id), "rating")
    return Call(method="DELETE", path=f"{API}{path}", parse=reader(Message).from_json)


def swipes(conversation_id: str) -> Call[list[Message]]:
    """List all replies to the last message; ``regenerate`` makes another one. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        A list of Message objects.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id, "swipes"), list[Message])


def choose(conversation_id: str, message_id: str) -> Call[Message]:
    """Go on with one of the swipes; the choice is kept as a judgement. Backend.

    Args:
        conversation_id: The conversation's id.
        message_id: The message's id.

    Returns:
        The Message, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    request = ChoiceRequest(message_id=message_id)
    return post(of_conversation(conversation_id, "choice"), Message, request)


def send(conversation_id: str, content: str, *, idempotency_key: str | None = None) -> Call[Reply]:
    """Say something; the answer is the bot's whole reply. With a key it is one turn, however often it is sent. Backend.

    Args:
        conversation_id: The conversation's id.
        content: What the user says.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Reply.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        ConversationBusy: A reply is still being written.
        Unavailable: Its model server cannot answer now; ``retry_after_s`` says when to try again.
    """
    request = MessageRequest(content=content)
    return _reply(of_conversation(conversation_id, "messages"), request, idempotency_key)


def stream_send(
    conversation_id: str, content: str, *, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    """Do as ``send``, token by token; the whole Reply comes last. Backend.

    Args:
        conversation_id: The conversation's id.
        content: What the user says.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Token or Reply objects, one after another.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    request = MessageRequest(content=content, stream=True)
    return _reply_stream(of_conversation(conversation_id, "messages"), request, idempotency_key)


def regenerate(
    conversation_id: str, *, may_compare: bool = False, idempotency_key: str | None = None
) -> Call[Reply]:
    """Ask for another reply in place of the last one. Backend.

    Args:
        conversation_id: The conversation's id.
        may_compare: Your users have agreed that another submission may write it, where the competition draws it so.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Reply.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        NothingToRegenerate: There is no message of the user to answer.
    """
    path = of_conversation(conversation_id, "regenerate")
    return _reply(path, RegenerateRequest(may_compare=may_compare), idempotency_key)


def stream_regenerate(
    conversation_id: str, *, may_compare: bool = False, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    """Do as ``regenerate``, token by token; the whole Reply comes last. Backend.

    Args:
        conversation_id: The conversation's id.
        may_compare: Your users have agreed that another submission may write it. A compared reply comes in one piece.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Token or Reply objects, one after another.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "regenerate")
    request = RegenerateRequest(stream=True, may_compare=may_compare)
    return _reply_stream(path, request, idempotency_key)


def continue_reply(conversation_id: str, *, idempotency_key: str | None = None) -> Call[Reply]:
    """Have the last reply go on where it ended, for instance where its length limit cut it. Backend.

    Args:
        conversation_id: The conversation's id.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Reply.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        NothingToContinue: The last message is no reply.
    """
    path = of_conversation(conversation_id, "continue")
    return _reply(path, ContinueRequest(), idempotency_key)


def stream_continue_reply(
    conversation_id: str, *, idempotency_key: str | None = None
) -> StreamCall[Token | Reply]:
    """Do as ``continue_reply``, token by token: only what is added. The whole Reply comes last. Backend.

    Args:
        conversation_id: The conversation's id.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Token or Reply objects, one after another.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    path = of_conversation(conversation_id, "continue")
    return _reply_stream(path, ContinueRequest(stream=True), idempotency_key)


def memory(conversation_id: str) -> Call[ConversationMemory]:
    """Read what a conversation remembers: summaries of older messages, and which were shown again. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        The ConversationMemory.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id, "memory"), ConversationMemory)


def persona(conversation_id: str) -> Call[ConversationPersona]:
    """Read the persona that a conversation's prompts have, and what it was shortened from. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        The ConversationPersona.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id, "persona"), ConversationPersona)


def correct_memory(conversation_id: str, summary: str) -> Call[ConversationMemory]:
    """Replace all summaries of a conversation so far; later ones go on from the new text. Backend.

    Args:
        conversation_id: The conversation's id.
        summary: What is to be remembered.

    Returns:
        The ConversationMemory, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        ConversationBusy: A reply is being written.
    """
    path = of_conversation(conversation_id, "memory")
    return put(path, ConversationMemory, MemoryCorrection(summary=summary))


def erase_memory(conversation_id: str) -> Call[None]:
    """Forget what was said so far: it is neither summarized nor recalled. The messages stay. Backend.

    Args:
        conversation_id: The conversation's id.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        ConversationBusy: A reply is being written.
    """
    return delete(of_conversation(conversation_id, "memory"))


def assignment(conversation_id: str) -> Call[AssignmentReplay]:
    """Return how a conversation got its submission, and whether the same choice gives it again. Admin.

    Args:
        conversation_id: The conversation's id.

    Returns:
        The AssignmentReplay.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(
        of_conversation(conversation_id, "assignment"),
        AssignmentReplay,
    )


def next_assignment(*, competition: str = OPEN, user_id: str | None = None) -> Call[Assignment]:
    """Return the submission that a new conversation should go to now, for a backend that talks to the model itself. Backend.

    Args:
        competition: The id of the competition that assigns it.
        user_id: The app's own id of the user; the choice then prefers submissions that are new to them.

    Returns:
        The Assignment.

    Raises:
        CompetitionNotFound: There is no such competition.
        CompetitionClosed: The competition does not run now.
        NoModelAvailable: No submission takes conversations now.
    """
    params = {"competition": competition} | ({} if user_id is None else {"user_id": user_id})
    return get("/assignment", Assignment, params=params)


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

    Args:
        event: A server-sent event.

    Returns:
        The Token or Reply; None for an event that says nothing of the reply, or that only a newer version knows.

    Raises:
        GuanacoError: The event is an ``error``; it is the error that the event stands for.
    """
    if event.event == "error":
        raise GuanacoError.from_wire(json.loads(event.data))
    if event.event == LAST_EVENT:
        return reader(Reply).from_json(event.data)
    return reader(Token).from_json(event.data) if event.event == "token" else None
