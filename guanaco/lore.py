"""Lorebooks: facts about a character's world, each put into the prompt when a conversation comes to speak of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_ENTRIES = 300
MAX_KEYS = 50  # of one entry
MAX_KEY_CHARS = 200
MAX_ENTRY_CHARS = 8_192
MAX_SCAN_DEPTH = 20
MAX_RECURSION = 5
MAX_LORE_TOKENS = 4_096

Key = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY_CHARS)]
Keys = Annotated[tuple[Key, ...], Field(max_length=MAX_KEYS)]


class LoreEntry(BaseModel):
    """One fact. It is told when one of ``keys`` is said, and one of ``secondary_keys`` where there are any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: str = Field(max_length=MAX_ENTRY_CHARS)
    keys: Keys = ()
    secondary_keys: Keys = ()
    is_constant: bool = Field(default=False, description="Always told, behind the persona.")
    is_regex: bool = Field(default=False, description="The keys are regular expressions.")
    is_case_sensitive: bool = False
    order: int = Field(
        default=100,
        ge=-(2**31),
        le=2**31 - 1,
        description="Entries that are told together stand in this order, the lowest first.",
    )
    priority: int = Field(
        default=0,
        ge=-(2**31),
        le=2**31 - 1,
        description="Where the budget is too small for all, the lowest are left out.",
    )
    scan_depth: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SCAN_DEPTH,
        description="In place of the book's.",
    )
    name: str = Field(default="", max_length=200, description="For people.")


class Lorebook(BaseModel):
    """The entries, and how they are looked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: tuple[LoreEntry, ...] = Field(default=(), max_length=MAX_ENTRIES)
    scan_depth: int = Field(
        default=4,
        ge=0,
        le=MAX_SCAN_DEPTH,
        description="In how many of the newest messages keys are looked for.",
    )
    token_budget: int = Field(
        default=512,
        ge=0,
        le=MAX_LORE_TOKENS,
        description="At most so much is told at a time; four bytes are taken for a token.",
    )
    recursion: int = Field(
        default=0,
        ge=0,
        le=MAX_RECURSION,
        description="Number of times that keys are also looked for in the entries that were found.",
    )
