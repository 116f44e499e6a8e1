"""Draws which conversations are asked for a rating, and keeps what was known of each before the draw.

    the k-th reply ─▶ is it the user's first such conversation with the submission? ─▶ its signals are kept ─▶ drawn: asked, or not

The draw is a hash of the competition, its seed and the conversation's id, so anybody who knows these can make it again. What is not asked
is kept too: the estimate needs its signals (leaderboard/asks.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Sender
from guanaco.competitions import AskRule
from guanaco_server.chat import queries
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.chat.gateway.turns.turn_log import NewMessage, NewReply
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock

RECENT = timedelta(hours=1)
HASH_BYTES = 8


@dataclass(frozen=True)
class Signals:
    """The signals of how a user likes a conversation, up to the reply after which they may be asked.

    Attributes:
        said_chars: The mean length of the user's messages.
        reply_chars: The mean length of the replies that stand.
        regenerated: Replies that the user had replaced.
        recent: The user's messages within the last hour.
        minutes: Since the conversation began.
        reward: The mean score by a reward model; None where there is none.
    """

    said_chars: float
    reply_chars: float
    regenerated: int
    recent: int
    minutes: float
    reward: float | None


class AskService:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def draw(
        self,
        history: History,
        asked: NewMessage | None,
        reply: NewReply,
        rule: AskRule,
        seed: int | None,
    ) -> bool:
        """Return whether the conversation is asked, and record it before anybody hears of it. Repeating it changes nothing."""
        now = self._clock.now()
        row = {
            "conversation_id": history.conversation_id,
            "competition": history.competition,
            "submission_id": history.submission_id,
            "user_key": user_key(history.account_id, history.user_id),
            "at": now,
            "until": now + timedelta(minutes=rule.answer_minutes),
            "chance": rule.share,
            "is_asked": drawn(history.competition, seed, history.conversation_id) < rule.share,
        }

        async def keep(session: AsyncSession) -> bool:
            row["signals"] = asdict(await self._signals(session, history, asked, reply, now))
            return await queries.keep_ask(session, row) is True

        try:
            return await self._database.write_unit(keep, is_urgent=True)
        except IntegrityError:  # erased meanwhile: so the turn will not be stored either
            return False

    async def _signals(
        self,
        session: AsyncSession,
        history: History,
        asked: NewMessage | None,
        reply: NewReply,
        now: datetime,
    ) -> Signals:
        stored = await queries.messages_of(session, [history.conversation_id])
        replies = [row for row in stored if row.sender is Sender.BOT and not row.is_imported]
        stands = [row for row in replies if not row.is_deleted and row.id not in history.tail]
        user_messages = [turn.content for turn in history.turns if turn.sender is Sender.USER]
        times = [row.created_at for row in stored if row.sender is Sender.USER]
        scores = [row.reward_score for row in stands] + [reply.reward_score]
        known = [score for score in scores if score is not None]
        lengths = [len(row.content) for row in stands] + [len(reply.content)]
        return Signals(
            said_chars=sum(map(len, user_messages)) / max(len(user_messages), 1),
            reply_chars=sum(lengths) / len(lengths),
            regenerated=len(replies) - len(stands),
            recent=sum(at > now - RECENT for at in times) + (asked is not None),
            minutes=max(0.0, (now.timestamp() - history.began_at) / 60),
            reward=sum(known) / len(known) if known else None,
        )


def drawn(competition: str, seed: int | None, conversation_id: str) -> float:
    """Return the number from 0 to 1 by which a conversation is asked: it is if the number is below the share."""
    text = f"ask {competition} {'' if seed is None else seed} {conversation_id}"
    digest = hashlib.sha256(text.encode()).digest()[:HASH_BYTES]
    return float(int.from_bytes(digest) / 2 ** (8 * HASH_BYTES))
