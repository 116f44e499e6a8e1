"""Ids that the old client takes apart, derived from ours: the same every time, and worth nothing outside.

    conversation  _bot_{bot uuid}_{user id}_{epoch ms}
    feedback      {conversation}_{epoch second of the rating}

Neither a bot's uuid nor a user's id contains ``_``. A user's id is made of the keyed pseudonym that developers
see anyway, so it needs no key of its own.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from guanaco.feedback import Feedback

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "guanaco:old-client")


def bot_id(bot_name: str) -> str:
    """Contains ``_bot``, by which the client tells bots from users."""
    return f"_bot_{uuid.uuid5(NAMESPACE, f'bot {bot_name}')}"


def user_id(pseudonym: str) -> str:
    return uuid.uuid5(NAMESPACE, f"user {pseudonym}").hex


def epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000 + moment.microsecond // 1_000


class ConversationIds:
    """The ids of one submission's conversations, oldest rating first, no two the same.

    Where one user began two conversations with one bot in the same millisecond, the later rated counts as a
    millisecond later.
    """

    def __init__(self) -> None:
        self._given: set[str] = set()

    def of(self, feedback: Feedback) -> str:
        begun = min((message.at for message in feedback.messages), default=feedback.at)
        stem = f"{bot_id(feedback.bot_name)}_{user_id(feedback.user)}"
        ms = epoch_ms(begun)
        while (found := f"{stem}_{ms}") in self._given:
            ms += 1
        self._given.add(found)
        return found


def feedback_id(conversation_id: str, rated_at: datetime) -> str:
    return f"{conversation_id}_{int(rated_at.timestamp())}"
