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
    Side,
)
from guanaco.errors import GuanacoError
from guanaco.sse import ServerEvent


def battle(
    conversation_id: str, content: str, *, idempotency_key: str | None = None
) -> Call[Battle]:
    """Say something, and get two replies to choose from, where the competition has battles. Backend."""
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
    """``battle``, token by token, each with its side; the whole Battle comes last. Backend."""
    return StreamCall(
        method="POST",
        path=f"{API}{of_conversation(conversation_id, 'battles')}",
        json=to_json(BattleRequest(content=content, stream=True)),
        headers=keyed(idempotency_key),
        parse=parse_battle_event,
        must_end_with=LAST_EVENT,
    )


def battles(conversation_id: str) -> Call[list[BattleRecord]]:
    """Return the battles of a conversation, oldest first. Backend."""
    return get(of_conversation(conversation_id, "battles"), list[BattleRecord])


def vote_on_battle(
    conversation_id: str,
    battle_id: str,
    outcome: DuelOutcome | str,
    *,
    continue_from: Side | None = None,
) -> Call[BattleRecord]:
    """Say which reply is better: ``a``, ``b``, ``tie`` or ``both_bad``. The same vote again changes nothing. Backend."""
    request = DuelVoteRequest.model_validate(
        {"outcome": str(outcome), "continue_from": continue_from}
    )
    path = of_conversation(conversation_id, "battles", segment(battle_id), "vote")
    return put(path, BattleRecord, request)


def duels(submission_id: str, *, cursor: str | None = None, limit: int = 50) -> Call[DuelPage]:
    """Return one page of your submission's duels, newest first, and its results in all of them."""
    query = DuelQuery(cursor=cursor, limit=limit)
    params = query.model_dump(mode="json", exclude_none=True)
    return get(
        of_submission(submission_id, "duels"),
        DuelPage,
        params={name: str(value) for name, value in params.items()},
    )


def duels_of_pairs(competition_id: str) -> Call[list[PairScore]]:
    """Return the results of each pair of submissions in a competition. Admin."""
    return get(f"/competitions/{segment(competition_id)}/duels", list[PairScore])


def parse_battle_event(event: ServerEvent) -> BattleToken | Battle | None:
    """Read an event of a streamed battle; None for one that only a newer version knows.

    Raises the error that an ``error`` event stands for.
    """
    if event.event == "error":
        raise GuanacoError.from_wire(json.loads(event.data))
    if event.event == LAST_EVENT:
        return reader(Battle).from_json(event.data)
    return reader(BattleToken).from_json(event.data) if event.event == "token" else None
