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
