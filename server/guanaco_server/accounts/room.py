"""Builds the accounts room: accounts with their keys, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import AccountService
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock


@dataclass(frozen=True)
class AccountsRoom:
    """``auth`` guards the routes of the HTTP API."""

    accounts: AccountService
    audit: AuditLog
    auth: Auth


def build_accounts(database: Database, clock: Clock) -> AccountsRoom:
    audit = AuditLog(database, clock)
    accounts = AccountService(database, clock, audit)
    return AccountsRoom(accounts, audit, Auth(accounts))
