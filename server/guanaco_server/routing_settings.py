"""The settings about routing; a part of settings.py."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class RoutingSettings(BaseSettings):
    conversation_open_s: float = Field(
        default=5,
        ge=0,
        description="Seconds after its opening for which a conversation takes some of its submission's capacity; with 0 only replies that are being written do.",
    )
    assignment_snapshot_days: int = Field(
        default=30,
        ge=1,
        description="Days for which an assignment of a competition with a seed can be made again; what it was made of (47 KB for 1,000 submissions, one at most for each second with a new conversation) is dropped when it was not used for so long.",
    )
