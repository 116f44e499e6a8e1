"""Keeps what clients were told during a campaign. The auditor compares it with what is stored.

A client repeats each request, with one Idempotency-Key, until it is acknowledged. So everything that was asked for is
there once: what is missing was lost, and what is there beyond it was doubled. What a client gave up, since it has ended or its
submission was torn down, may be there or not; it is kept as ``open``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ToldTurn:
    """A user's message, and the ids of the replies to it: the first, and one for each regeneration."""

    content: str
    reply_ids: list[str] = field(default_factory=list)


@dataclass
class LocalConversation:
    """A conversation as its user knows it. ``open`` is what was sent and never acknowledged."""

    user_id: str
    conversation_id: str | None = None
    turns: list[ToldTurn] = field(default_factory=list)
    rating: tuple[bool, str] | None = None
    open: str | None = None
    open_kind: str = ""


@dataclass
class ToldSubmission:
    """``runs`` counts the runs that were acknowledged: the first, and one for each redeploy."""

    idempotency_key: str
    repo: str
    id: str | None = None
    runs: int = 1
    has_open_redeploy: bool = False


@dataclass
class Ledger:
    """``forgotten`` are requests that were carried out, and whose repetition was refused instead of answered.

    ``refused`` are answers that nobody should get; each says what it was.
    """

    talks: list[LocalConversation] = field(default_factory=list)
    submissions: list[ToldSubmission] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    repeated: int = 0

    def counts(self) -> dict[str, int]:
        return {
            "conversations": sum(talk.conversation_id is not None for talk in self.talks),
            "turns": sum(len(talk.turns) for talk in self.talks),
            "replies": sum(len(turn.reply_ids) for talk in self.talks for turn in talk.turns),
            "ratings": sum(talk.rating is not None for talk in self.talks),
            "submissions": sum(one.id is not None for one in self.submissions),
            "redeploys": sum(one.runs - 1 for one in self.submissions),
        }
