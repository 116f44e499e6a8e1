"""The settings about webhooks; a part of settings.py."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class NotificationSettings(BaseSettings):
    webhook_allow_private: bool = Field(
        default=False,
        description="Let webhooks go into private networks and over plain http: for intranets and tests, where every developer is trusted.",
    )
    webhook_poll_s: float = Field(
        default=5.0,
        gt=0,
        le=300,
        description="How often events and ratings are looked for that a webhook tells of; this process's own status changes are told at once.",
    )
    webhook_timeout_s: float = Field(
        default=10.0, gt=0, le=30, description="What a webhook's receiver has to answer in."
    )
    webhook_link_base: str | None = Field(
        default=None,
        description="The platform's own URL as its users know it, for the links in webhooks; paths alone otherwise.",
    )
