"""Translates between our models and the old client's.

The old client takes ids apart. They are derived from ours, so that they are the same every time:

    conversation  _bot_{bot uuid}_{user id}_{epoch ms}
    feedback      {conversation}_{epoch second of the rating}

Neither a bot's uuid nor a user's id contains ``_``. A user's id is made of the keyed pseudonym that developers see
anyway, so it needs no key of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from guanaco.chat import Bot, Message, PreviewRequest, Sender, Turn
from guanaco.feedback import Feedback
from guanaco.leaderboard import LeaderboardRow
from guanaco.prompts import PromptFormatter
from guanaco.submissions import (
    GenerationParams,
    Status,
    Submission,
    SubmissionEvent,
    SubmissionRequest,
)
from guanaco_server.compat.schemas import (
    USER,
    ChatRequest,
    LogEntry,
    OldFeedback,
    OldLeaderboardRow,
    OldMessage,
    OldSender,
    OldSubmission,
    SubmitRequest,
)

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "guanaco:old-client")
PENDING = "pending"
STATUSES = {
    Status.DEPLOYED: "deployed",
    Status.INACTIVE: "inactive",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",  # the client waits for deployed, failed or inactive
    Status.TORN_DOWN: "torndown",
}

SPEAKERS = {Sender.USER: "User"}


def status(ours: Status) -> str:
    """The old client knows no other words: a status that only a newer version knows is not an end, hence pending."""
    return STATUSES.get(ours, PENDING)


def submission_request(old: SubmitRequest, reward: str | None) -> SubmissionRequest:
    """``reward`` is the id of the reward model that the old request names by its repo."""
    return SubmissionRequest(
        repo=old.model_repo,
        name=old.model_name,
        params=GenerationParams(**old.generation_params.model_dump()),
        formatter=old.formatter or PromptFormatter(),
        reward=reward,
        reward_formatter=old.reward_formatter if reward else None,
    )


def submission(ours: Submission, reward_repos: Mapping[str, str]) -> OldSubmission:
    return OldSubmission(
        submission_id=ours.id,
        developer_uid=ours.developer,
        status=status(ours.status),
        model_name=ours.name,
        model_repo=ours.repo,
        reward_repo=reward_repos.get(ours.reward or ""),
        generation_params=ours.params,
        formatter=ours.formatter if isinstance(ours.formatter, PromptFormatter) else None,
        timestamp=ours.created_at,
    )


def log_entry(event: SubmissionEvent) -> LogEntry:
    """``path`` names the stage, ``line_number`` the event."""
    return LogEntry(
        timestamp=event.at,
        level=event.level.upper(),
        entry=event.message,
        line_number=event.seq,
        path=event.stage or event.kind,
    )


def preview_request(old: ChatRequest) -> PreviewRequest:
    return PreviewRequest(
        bot=Bot(name=old.bot_name, memory=old.memory, prompt=old.prompt),
        turns=[
            Turn(sender=Sender.USER if turn.sender == USER else Sender.BOT, content=turn.message)
            for turn in old.chat_history
        ],
        user_name=old.user_name,
    )


def leaderboard_row(
    row: LeaderboardRow,
    up: int,
    down: int,
    ours: Submission | None,
    reward_repos: Mapping[str, str],
) -> OldLeaderboardRow:
    reward = ours.reward if ours else None
    return OldLeaderboardRow(
        developer_uid=row.developer,
        model_name=row.name,
        model_repo=row.repo,
        reward_repo=reward_repos.get(reward or ""),
        is_custom_reward=reward is not None,
        status=status(row.status),
        timestamp=row.created_at,
        thumbs_up=up,
        thumbs_down=down,
        model_num_parameters=ours.parameter_count if ours else None,
    )


def feedback(ours: Feedback, conversation_id: str, model_name: str) -> OldFeedback:
    return OldFeedback(
        conversation_id=conversation_id,
        messages=[_message(ours, one, conversation_id, model_name) for one in ours.messages],
        thumbs_up=ours.thumbs_up,
        text=ours.text,
        model_name=model_name,
        user_id=user_id(ours.user),
    )


def sent_date(moment: datetime) -> str:
    """``YYYY-MM-DD HH:MM:SS.mmm``, UTC."""
    naive = moment.astimezone(UTC).replace(tzinfo=None)
    return naive.isoformat(" ", "milliseconds")


def _message(
    rated: Feedback, message: Message, conversation_id: str, model_name: str
) -> OldMessage:
    is_bot = message.sender is Sender.BOT
    return OldMessage(
        message_id=message.id,
        conversation_id=conversation_id,
        content=message.content,
        sent_date=sent_date(message.at),
        deleted=message.is_deleted,
        sender=OldSender(
            name=rated.bot_name if is_bot else SPEAKERS.get(message.sender, message.sender.value),
            uid=bot_id(rated.bot_name) if is_bot else user_id(rated.user),
        ),
        metadata={"model_name": model_name} if is_bot else {},
    )


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
