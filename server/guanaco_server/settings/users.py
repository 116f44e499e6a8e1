"""Settings of what people see and send: web pages, webhooks, ratings."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, field_validator

from guanaco_server.anonymization.anonymizer import DEFAULT_REGIONS

ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError(f"{text} is neither an address nor a network such as 10.0.0.0/8") from None
    return text


def _origin(text: str) -> str:
    if text != "*" and not ORIGIN.fullmatch(text):
        raise ValueError(f"{text} is no origin such as https://app.example, without a path, nor *")
    return text


class WebSettings(BaseModel):
    """Web pages"""

    web_session_hours: float = Field(
        default=168, gt=0, le=8_760, description="Time after which a browser must sign in again."
    )
    web_https: bool = Field(
        default=False,
        description="Browsers reach the platform by https although it listens on http, behind a proxy: cookies then go over https only.",
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        default=("127.0.0.1", "::1"),
        description="Addresses and networks (10.0.0.0/8) of the proxies in front, whose X-Forwarded-For and X-Forwarded-Proto are believed. Without them all who come through a proxy are one address, and share its limits of wrong keys.",
    )
    web_bots: Path | None = Field(
        default=None,
        description="TOML file with the bots of the chat page, a table for each (name, memory, prompt, first_message); the four that ship otherwise.",
    )
    web_choose_models: bool = Field(
        default=False,
        description="Let everybody begin a chat with a model of their choice, on its public page. Such a chat counts in no competition. Developers may always try their own models.",
    )


class CorsSettings(BaseModel):
    """Apps in browsers"""

    cors_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(),
        description="Origins (https://app.example) whose pages may call the API from a browser, or `*` for all. Whoever sees such a page can read the key that it sends, so give it a key of its own.",
    )


class NotificationSettings(BaseModel):
    """Webhooks"""

    webhook_allow_private: bool = Field(
        default=False,
        description="Let webhooks go into private networks and over plain http, for intranets and tests in which every developer is trusted.",
    )
    webhook_timeout_s: float = Field(
        default=10.0, gt=0, le=30, description="Longest a webhook's receiver may take to answer."
    )
    webhook_link_base: str | None = Field(
        default=None,
        description="The platform's own URL as its users know it, for the links in webhooks. Default: links are paths only.",
    )


class FeedbackSettings(BaseModel):
    """Feedback"""

    phone_regions: list[str] = Field(
        default=list(DEFAULT_REGIONS),
        description="Countries (ISO 3166, two letters) whose phone numbers are recognized in texts without a country code; each adds some microseconds for each number.",
    )

    @field_validator("phone_regions")
    @classmethod
    def _are_known(cls, regions: list[str]) -> list[str]:
        from phonenumbers import SUPPORTED_REGIONS

        if unknown := [region for region in regions if region not in SUPPORTED_REGIONS]:
            raise ValueError(f"There is no country {unknown[0][:40]!r}; write it like US or DE")
        return regions
