"""Reward models: who may name which, who is served with one, and what the gateway needs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import RewardInUse, RewardUnusable
from guanaco.open_enum import spoken
from guanaco.prompts import Prompt
from guanaco.submissions import (
    IN_PROGRESS,
    NO_REWARD,
    GenerationParams,
    Status,
    SubmissionKind,
)
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.submissions import queries
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.tables import SubmissionRow


@dataclass(frozen=True)
class ServingReward:
    """A published reward model; ``formatter`` is how it sees a conversation, None as the chat model does."""

    id: str
    artifact_key: str
    max_input_tokens: int
    formatter: Prompt | None


class RewardService:
    """``default`` picks the replies of submissions that name no reward model, and anybody may name it."""

    def __init__(self, database: Database, default: str | None) -> None:
        self._database = database
        self.default = default

    async def require_usable(
        self, session: AsyncSession, account: Account, reward: str | None
    ) -> None:
        """RewardUnusable unless it is deployed, and the account's own or the default. It stays so until the transaction ends."""
        if reward is None or reward == NO_REWARD:
            return
        row = await queries.by_id_held(session, reward)
        if row is None or not self._may_name(account, row):
            raise RewardUnusable(reward, "there is no such reward model of yours")
        if row.kind is not SubmissionKind.REWARD:
            raise RewardUnusable(reward, "it is a chat model")
        if row.status is not Status.DEPLOYED:
            raise RewardUnusable(reward, f"it is {spoken(row.status)}")

    async def require_unused(self, session: AsyncSession, submission_id: str) -> None:
        """RewardInUse while submissions name it that are served or on their way there."""
        users = await queries.count_users(session, submission_id, *IN_PROGRESS, *SERVED)
        if users:
            raise RewardInUse(submission_id, users)

    async def list_serving(self) -> list[ServingReward]:
        async with self._database.read() as session:
            rows = await queries.with_status(session, *SERVED, kind=SubmissionKind.REWARD)
            return [_serving(row) for row in rows]

    def users(
        self, rows: Sequence[Row[str, str, Status, SubmissionKind, str | None, GenerationParams]]
    ) -> Mapping[str, frozenset[str]]:
        """Return for each reward model the chat submissions whose replies it may have to pick."""
        chats = [(row.id, row.reward) for row in rows if row.kind is SubmissionKind.CHAT]
        return {
            row.id: frozenset(chat for chat, reward in chats if (reward or self.default) == row.id)
            for row in rows
            if row.kind is SubmissionKind.REWARD
        }

    def _may_name(self, account: Account, row: SubmissionRow) -> bool:
        return row.account_id == account.id or row.id == self.default or account.role is Role.ADMIN


def _serving(row: SubmissionRow) -> ServingReward:
    assert row.artifact_key is not None, "a published submission has an artifact"
    return ServingReward(
        row.id, row.artifact_key, row.params.max_input_tokens, row.reward_formatter
    )
