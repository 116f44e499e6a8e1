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
    turn_wait_s: float = Field(
        default=15,
        ge=1,
        description="Longest a message waits for a place at a model that is at capacity; then the answer is 503.",
    )
    replica_max_streams: int = Field(
        default=512,
        ge=1,
        description="Replies at once that one gateway process asks of one model server. Fewer where its stress check showed a smaller capacity, which all gateway processes share.",
    )
    background_writer: str = Field(
        default="own",
        min_length=1,
        description="Writer of the summaries of long conversations and of shortened personas, in the background: `own`, the conversation's submission; a submission's id; or `rule`, no model.",
    )


class CharacterSettings(BaseModel):
    """Characters"""

    character_max_bytes: int = Field(
        default=8_388_608,
        ge=65_536,
        le=33_554_432,
        description="Largest upload of a character, with its picture and assets; also what a CHARX file may unpack to.",
    )
    prompt_bytes_per_account: int = Field(
        default=16_000_000,
        ge=0,
        description="How many bytes all versions of an account's stored prompts may take.",
    )
    characters_per_account: int = Field(
        default=1_000, ge=0, description="How many characters an account may have."
    )
    character_bytes_per_account: int = Field(
        default=1_073_741_824,
        ge=0,
        description="How many bytes all versions of an account's characters may take, as they were uploaded. They are kept in the database.",
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
