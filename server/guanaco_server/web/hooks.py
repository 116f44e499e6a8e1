"""What pages offer only where the platform has it: without a hook there is no page and no button."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from guanaco.feedback import Erasure
from guanaco_server.accounts.service import Account
from guanaco_server.feedback import erasure


class AuditEntry(Protocol):
    """Who did what to whom."""

    @property
    def at(self) -> datetime: ...
    @property
    def account(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def subject(self) -> str: ...


class AuditPage(Protocol):
    """``next_cursor`` is None when there is nothing older."""

    @property
    def items(self) -> Sequence[AuditEntry]: ...
    @property
    def next_cursor(self) -> str | None: ...


Eraser = Callable[[Account, str, str | None], Awaitable[Erasure]]
"""Erases all that is stored of a user: on whose behalf, the user's id, and the backend's account name where given."""

AuditReader = Callable[[int, str | None], Awaitable[AuditPage]]
"""So many entries, the newest first, from a cursor on."""

Freezer = Callable[[Account, str], Awaitable[object]]
"""Makes a competition's ranking final."""


@dataclass(frozen=True)
class WebHooks:
    """``on_erase`` has the pages' own rows of a user erased within the same transaction as all others."""

    erase: Eraser | None = None
    on_erase: Callable[[erasure.Eraser], None] | None = None
    audit: AuditReader | None = None
    freeze: Freezer | None = None
