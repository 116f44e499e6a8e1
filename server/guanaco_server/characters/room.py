"""Builds the characters room."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import AccountService
from guanaco_server.characters.service import CharacterService, Eraser
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class CharactersRoom:
    service: CharacterService


def build_characters(
    database: Database,
    clock: Clock,
    *,
    accounts: AccountService,
    audit: AuditLog,
    on_erasing: Eraser,
    settings: Settings,
) -> CharactersRoom:
    return CharactersRoom(CharacterService(database, clock, accounts, audit, settings, on_erasing))
