"""The settings about the web pages; a part of settings.py."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings


class WebSettings(BaseSettings):
    web_session_hours: float = Field(
        default=168, gt=0, le=8_760, description="After how long a browser must sign in again."
    )
    web_https: bool = Field(
        default=False,
        description="Whether browsers reach the platform by https although it listens on http, behind a proxy: cookies then go over https only.",
    )
    web_bots: Path | None = Field(
        default=None,
        description="TOML file with the bots of the chat page, a table for each (name, memory, prompt, first_message); the four that ship otherwise.",
    )
