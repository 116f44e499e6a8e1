"""Calls about battles and duels: two replies to one message, and the votes on them."""

from __future__ import annotations

import json

from guanaco.calls.chat import LAST_EVENT
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
    put,
    segment,
    to_json,
)
from guanaco.contract import reader
from guanaco.duels import (
    Battle,
    BattleRecord,
    BattleRequest,
    BattleToken,
    DuelOutcome,
    DuelPage,
    DuelQuery,
    DuelVoteRequest,
    PairScore,
    RegenerationPair,
    RivalReplay,
    Side,
)
from guanaco.errors import GuanacoError
from guanaco.sse import ServerEvent


def battle(
    conversation_id: str, content: str, *, idempotency_key: str | None = None
) -> Call[Battle]:
    """Say something, and get two replies to choose from, where the competition has battles. Backend.

    Args:
        conversation_id: The conversation's id.
        content: What the user says.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The Battle.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        BattlesOff: The competition has no battles.
    """
    return post(
        of_conversation(conversation_id, "battles"),
        Battle,
        BattleRequest(content=content),
        timeout_s=REPLY_TIMEOUT_S,
        idempotency_key=idempotency_key,
    )


def stream_battle(
    conversation_id: str, content: str, *, idempotency_key: str | None = None
) -> StreamCall[BattleToken | Battle]:
    """Do as ``battle``, token by token, each with its side; the whole Battle comes last. Backend.

    Args:
        conversation_id: The conversation's id.
        content: What the user says.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.

    Returns:
        The BattleToken or Battle objects, one after another.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return StreamCall(
        method="POST",
        path=f"{API}{of_conversation(conversation_id, 'battles')}",
        json=to_json(BattleRequest(content=content, stream=True)),
        headers=keyed(idempotency_key),
        parse=parse_battle_event,
        must_end_with=LAST_EVENT,
    )


def battles(conversation_id: str) -> Call[list[BattleRecord]]:
    """Return the battles of a conversation, oldest first. Backend.

    Args:
        conversation_id: The conversation's id.

    Returns:
        A list of BattleRecord objects.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
    """
    return get(of_conversation(conversation_id, "battles"), list[BattleRecord])


def vote_on_battle(
    conversation_id: str,
    battle_id: str,
    outcome: DuelOutcome | str,
    *,
    continue_from: Side | None = None,
) -> Call[BattleRecord]:
    """Say which reply is better: ``a``, ``b``, ``tie`` or ``both_bad``. The same vote again changes nothing. Backend.

    Args:
        conversation_id: The conversation's id.
        battle_id: The battle's id.
        outcome: ``a``, ``b``, ``tie`` or ``both_bad``.
        continue_from: The reply with which the conversation goes on.

    Returns:
        The BattleRecord, as it is then.

    Raises:
        ConversationNotFound: There is no such conversation, or it is another app's.
        BattleNotFound: The conversation has no such battle.
    """
    request = DuelVoteRequest.model_validate(
        {"outcome": str(outcome), "continue_from": continue_from}
    )
    path = of_conversation(conversation_id, "battles", segment(battle_id), "vote")
    return put(path, BattleRecord, request)


def duels(submission_id: str, *, cursor: str | None = None, limit: int = 50) -> Call[DuelPage]:
    """Return one page of your submission's duels, newest first, and its results in all of them.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        cursor: The ``next_cursor`` of the page before; None for the first page.
        limit: The most that are returned.

    Returns:
        The DuelPage.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    query = DuelQuery(cursor=cursor, limit=limit)
    params = query.model_dump(mode="json", exclude_none=True)
    return get(
        of_submission(submission_id, "duels"),
        DuelPage,
        params={name: str(value) for name, value in params.items()},
    )


def duels_of_pairs(competition_id: str) -> Call[list[PairScore]]:
    """Return the results of each pair of submissions in a competition. Admin.

    Args:
        competition_id: The competition's id.

    Returns:
        A list of PairScore objects.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return get(f"/competitions/{segment(competition_id)}/duels", list[PairScore])


def rival(conversation_id: str, battle_id: str) -> Call[RivalReplay]:
    """Return how the rival of a battle was chosen, with its exact chance, and whether the same choice gives it again. Admin.

    Args:
        conversation_id: The conversation's id.
        battle_id: The battle's id.

    Returns:
        The RivalReplay.

    Raises:
        BattleNotFound: The conversation has no such battle.
    """
    path = of_conversation(conversation_id, "battles", segment(battle_id), "rival")
    return get(path, RivalReplay)


def rivals(conversation_id: str) -> Call[list[RivalReplay]]:
    """Return how the rivals of a conversation were chosen, in its battles and compared regenerations, the oldest first. Admin.

    Args:
        conversation_id: The conversation's id.

    Returns:
        A list of RivalReplay objects.

    Raises:
        ConversationNotFound: There is no such conversation.
    """
    return get(of_conversation(conversation_id, "rivals"), list[RivalReplay])


def regenerations_of_pairs(competition_id: str) -> Call[list[RegenerationPair]]:
    """Return how often new replies were kept that were drawn at random, by pair of submissions. Admin.

    Args:
        competition_id: The competition's id.

    Returns:
        A list of RegenerationPair objects.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    path = f"/competitions/{segment(competition_id)}/regenerations"
    return get(path, list[RegenerationPair])


def parse_battle_event(event: ServerEvent) -> BattleToken | Battle | None:
    """Read an event of a streamed battle.

    Args:
        event: A server-sent event.

    Returns:
        The BattleToken or Battle; None for an event that says nothing of the reply, or that only a newer version knows.

    Raises:
        GuanacoError: The event is an ``error``; it is the error that the event stands for.
    """
    if event.event == "error":
        raise GuanacoError.from_wire(json.loads(event.data))
    if event.event == LAST_EVENT:
        return reader(Battle).from_json(event.data)
    return reader(BattleToken).from_json(event.data) if event.event == "token" else None
