"""Settings of conversations: the gateway, routing and reward models."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ChatSettings(BaseModel):
    """The chat gateway"""

    first_token_timeout_s: float = Field(
        default=30, gt=0, description="Longest wait for a reply's first token."
    )
    reply_timeout_s: float = Field(default=120, gt=0, description="Longest a whole reply may take.")
    failover_s: float = Field(
        default=10,
        ge=0,
        description="How long a reply that has not begun waits for a replica, when each that was there has failed.",
    )
    replica_max_streams: int = Field(
        default=512,
        ge=1,
        description="Replies at once that one gateway process asks of one model server, waiting ones counted; beyond that the answer is 503 at once.",
    )


class RoutingSettings(BaseModel):
    """Routing"""

    conversation_open_s: float = Field(
        default=5,
        ge=0,
        description="Seconds for which an opened conversation counts against its submission's capacity before its first message; with 0 only replies that are being written count.",
    )


class RewardSettings(BaseModel):
    """Reward models"""

    default_reward_submission: str | None = Field(
        default=None,
        description="Id of the reward model that picks among candidates where a submission names none. Default: log-probability.",
    )
    reward_timeout_s: float = Field(
        default=2.0,
        gt=0,
        description="Longest wait for a reward model's scores; after that the reply is picked by log-probability. Its stress check allows as much.",
    )
