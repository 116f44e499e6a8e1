"""Duels: two submissions answer the same message, and the user says which reply is better."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from guanaco.chat import MessageText
from guanaco.competitions import AssignmentDecision
from guanaco.open_enum import OpenEnum

Side = Literal["a", "b"]


class DuelOutcome(OpenEnum):
    """The user's vote on two replies."""

    A = "a"
    B = "b"
    TIE = "tie"
    BOTH_BAD = "both_bad"


class DuelResult(OpenEnum):
    """A vote as one of the two submissions sees it."""

    WON = "won"
    LOST = "lost"
    TIE = "tie"
    BOTH_BAD = "both_bad"


class BattleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    content: MessageText
    stream: bool = False


class BattleReply(BaseModel):
    """One of two replies. Nothing in it says which submission wrote it."""

    content: str
    finish_reason: str


class BattleToken(BaseModel):
    """A piece of one of two replies that are being streamed."""

    side: Side
    text: str


class Battle(BaseModel):
    """Two replies to one message. A stream sends ``token`` events with ``{"side", "text"}``, then this as ``done``, or ``error``.

    Where only one submission could answer, ``battle_id`` is None and the side without a reply is None: it is an
    ordinary reply then, and there is nothing to vote on.
    """

    battle_id: str | None
    message_id: str = Field(description="The reply's message in the conversation.")
    a: BattleReply | None
    b: BattleReply | None
    continues_from: Side = Field(
        description="The reply that the conversation goes on with; until a vote it is drawn at random."
    )
    ask_for_feedback: bool = Field(
        default=False,
        description="The competition asks for the user's opinion after this reply (`feedback_after`).",
    )


class DuelVoteRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    outcome: Literal["a", "b", "tie", "both_bad"]
    continue_from: Side | None = Field(
        default=None,
        description="The reply to go on with. Default: the better one; where none is better, the one that stands.",
    )


class BattleRecord(BaseModel):
    """A battle as it is recorded, for the app that had it. ``revision`` counts the votes that were given on it."""

    battle_id: str
    message_id: str
    a: BattleReply
    b: BattleReply
    continues_from: Side
    outcome: DuelOutcome | None = None
    revision: int = 0
    created_at: datetime
    voted_at: datetime | None = None


class RivalDecision(AssignmentDecision):
    """All that the choice of a battle's rival depended on.

    ``seen`` by the user in duels with ``own``, least often first; duels with those in ``spent`` no longer count.
    """

    own: str
    spent: tuple[str, ...] = ()


class RivalReplay(BaseModel):
    """How the rival of a battle, or of a compared regeneration, was chosen. ``decision`` is None where its competition had no seed; ``is_same`` where it can no longer be made again.

    ``entries`` of the snapshot took part; ``replayed`` is what the same choice comes to now.
    """

    battle_id: str | None = Field(default=None, description="Null of a regeneration.")
    regeneration_id: str | None = Field(default=None, description="Null of a battle.")
    competition: str
    own: str
    rival: str
    drawn: str | None = Field(
        default=None,
        description="The submission whose reply the user got in a compared regeneration, by the coin. Null of a battle.",
    )
    at: datetime | None = Field(
        default=None,
        description="The time of the battle or the regeneration. Null from a platform of an older version.",
    )
    decision: RivalDecision | None = None
    entries: int | None = None
    replayed: str | None = None
    is_same: bool | None = None
    chance: float | None = Field(
        default=None,
        description="Chance that the rival was chosen, given the snapshot, whom the user had met and what was full or away. Null if the choice can no longer be repeated.",
    )


class DuelScore(BaseModel):
    """Results in duels. ``low`` and ``high`` hold the chance to win a duel that has a winner, with 95 % at every look; None without one."""

    won: int = 0
    lost: int = 0
    tie: int = 0
    both_bad: int = 0
    low: float | None = None
    high: float | None = None


class Duel(BaseModel):
    """A voted duel as the developer of one side reads it: the other side is anonymous. Personal data is replaced by tags such as <EMAIL>."""

    id: str
    submission_id: str
    competition: str
    result: DuelResult
    reply: str
    other_reply: str
    went_on: bool = Field(description="The user went on with this submission's reply.")
    at: datetime


class DuelQuery(BaseModel):
    """A page of a submission's duels, newest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cursor: str | None = Field(
        default=None, max_length=128, description="The cursor that an earlier page gave."
    )
    limit: int = Field(default=50, ge=1, le=200)


class DuelPage(BaseModel):
    score: DuelScore
    items: list[Duel]
    next_cursor: str | None = Field(
        default=None, description="Give it back as ?cursor= for older ones."
    )


class RegenerationScore(BaseModel):
    """Compared regenerations in conversations of one submission. A reply is kept if the user goes on from it within an hour.

    ``effect`` is how much more often a reply of the other submission is kept than a second one of the own; ``low`` and ``high``
    hold it with 95 % at every look, the error shared by all pairs. They are None without regenerations.
    """

    own_kept: int = 0
    own_total: int = 0
    other_kept: int = 0
    other_total: int = 0
    effect: float | None = None
    low: float | None = None
    high: float | None = None


class RegenerationPair(BaseModel):
    """Two submissions by their compared regenerations.

    ``lead`` is half of the effect of the first one's replies in the second one's conversations, less that of the second one's in the
    first one's. Whoever regenerates has disliked a reply of the conversation's own submission, which speaks for the other one in
    both, so it cancels. It is None until both kinds of conversations have some.
    """

    first: str
    second: str
    in_firsts: RegenerationScore
    in_seconds: RegenerationScore
    lead: float | None = None
    low: float | None = None
    high: float | None = None


class PairScore(BaseModel):
    """The duels of two submissions in a competition, as the first one's results. The error of 5 % is shared by all pairs."""

    first: str
    second: str
    score: DuelScore
