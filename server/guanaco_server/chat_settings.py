"""The settings of the chat gateway; a part of settings.py."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class ChatSettings(BaseSettings):
    gateways: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes of this machine that answer requests, on one port; several need PostgreSQL.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Whether other processes may listen on the same port (SO_REUSEPORT); with several gateways they do.",
    )
    first_token_timeout_s: float = Field(
        default=30, gt=0, description="Longest wait for a reply's first token."
    )
    reply_timeout_s: float = Field(default=120, gt=0, description="Longest a whole reply may take.")
    failover_s: float = Field(
        default=10,
        ge=0,
        description="How long a reply that has not begun waits for a replica, when each that was there has failed.",
    )
    heartbeat_s: float = Field(
        default=10,
        gt=0,
        description="Longest silence of a stream: then a comment is sent, which keeps proxies from closing it.",
    )
    replica_max_streams: int = Field(
        default=512,
        ge=1,
        description="Replies at once that one gateway process asks of one model server, waiting ones counted; beyond that the answer is 503 at once.",
    )
    history_cache_chars: int = Field(
        default=64_000_000,
        ge=0,
        description="Conversations kept in memory, in characters, so that a turn need not read them again.",
    )
    record_patience_s: float = Field(
        default=60,
        ge=0,
        description="How long a finished turn waits for a database that does not answer, before the client is told.",
    )
