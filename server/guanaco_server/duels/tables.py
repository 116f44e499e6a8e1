"""Battles, and the votes on them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.duels import DuelOutcome
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, Pydantic, UtcDateTime
from guanaco_server.duels.scores import PairResults
from guanaco_server.routing.snapshot import RivalRecord


class BattleRow(Table):
    """Two replies as they were shown, and the vote that stands. It goes with its conversation, whoever deletes that.

    ``message_id`` is the reply of the conversation's own submission, which is on ``own_side``. ``continues_from`` is the
    side that the conversation goes on with. ``decision`` is how the rival was chosen, where that can be repeated. A battle whose turn could not be stored has a message that is not there.
    Where the reply was deleted after a vote, the words and the message's id are empty.
    """

    __tablename__ = "battles"
    __table_args__ = (
        Index("ix_battles_a_submission_voted_at", "a_submission", "voted_at"),
        Index("ix_battles_b_submission_voted_at", "b_submission", "voted_at"),
        Index("ix_battles_competition_voted_at", "competition", "voted_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), index=True
    )
    message_id: Mapped[str] = mapped_column(String(64), index=True)
    competition: Mapped[str] = mapped_column(String(64))
    a_submission: Mapped[str] = mapped_column(String(128))
    b_submission: Mapped[str] = mapped_column(String(128))
    a_content: Mapped[str]
    b_content: Mapped[str]
    a_finish_reason: Mapped[str] = mapped_column(String(32))
    b_finish_reason: Mapped[str] = mapped_column(String(32))
    own_side: Mapped[str] = mapped_column(String(1))
    continues_from: Mapped[str] = mapped_column(String(1))
    outcome: Mapped[DuelOutcome | None] = mapped_column(EnumText(DuelOutcome))
    revision: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    voted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    decision: Mapped[RivalRecord | None] = mapped_column(Pydantic(RivalRecord))


class DuelPairRow(Table):
    """The duels of two submissions that count, as the first by name sees them. Each ranking writes them again."""

    __tablename__ = "duel_pairs"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    first: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    second: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    won: Mapped[int]
    lost: Mapped[int]
    tied: Mapped[int]
    both_bad: Mapped[int]

    @property
    def results(self) -> PairResults:
        return PairResults(self.won, self.lost, self.tied, self.both_bad)


class RegenerationRow(Table):
    """A new reply that was drawn at random: by the conversation's own submission, or by a rival. It goes with its conversation.

    Both had replied when it was drawn. ``went_on`` tells whether the user went on from it within the time that is given; it is
    None until that is over. A regeneration whose reply could not be stored has a message that is not there.
    """

    __tablename__ = "regenerations"
    __table_args__ = (
        Index("ix_regenerations_competition_at", "competition", "at"),
        Index(
            "ix_regenerations_undecided",
            "at",
            postgresql_where=text("went_on IS NULL"),
            sqlite_where=text("went_on IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), index=True
    )
    message_id: Mapped[str] = mapped_column(String(64))
    competition: Mapped[str] = mapped_column(String(64))
    own: Mapped[str] = mapped_column(String(128))
    rival: Mapped[str] = mapped_column(String(128))
    is_rivals: Mapped[bool]
    went_on: Mapped[bool | None]
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    decision: Mapped[RivalRecord | None] = mapped_column(Pydantic(RivalRecord))


class DuelRow(Table):
    """A vote on a battle, never changed: a changed mind is a row of the next ``revision``. ``given_by`` is the account."""

    __tablename__ = "duels"
    __table_args__ = (UniqueConstraint("battle_id", "revision"),)

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    battle_id: Mapped[str] = mapped_column(ForeignKey("battles.id", ondelete="CASCADE"))
    revision: Mapped[int]
    outcome: Mapped[DuelOutcome] = mapped_column(EnumText(DuelOutcome))
    continues_from: Mapped[str] = mapped_column(String(1))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    given_by: Mapped[str] = mapped_column(String(32))
