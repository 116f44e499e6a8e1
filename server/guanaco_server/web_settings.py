"""The settings about the web pages; a part of settings.py."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError(f"{text} is neither an address nor a network such as 10.0.0.0/8") from None
    return text


class WebSettings(BaseSettings):
    web_session_hours: float = Field(
        default=168, gt=0, le=8_760, description="After how long a browser must sign in again."
    )
    web_https: bool = Field(
        default=False,
        description="Whether browsers reach the platform by https although it listens on http, behind a proxy: cookies then go over https only.",
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        default=("127.0.0.1", "::1"),
        description="Addresses and networks (10.0.0.0/8) of the proxies in front, whose X-Forwarded-For and X-Forwarded-Proto are believed. Without them all who come through a proxy are one address, and share its limits of wrong keys.",
    )
    web_bots: Path | None = Field(
        default=None,
        description="TOML file with the bots of the chat page, a table for each (name, memory, prompt, first_message); the four that ship otherwise.",
    )
