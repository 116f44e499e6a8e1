"""Builds the idempotency room: answers that are kept for requests that are repeated."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.database.database import Database
from guanaco_server.idempotency.service import IdempotencyService
from guanaco_server.runtime.clock import Clock
from guanaco_server.runtime.duty import Duty


@dataclass(frozen=True)
class IdempotencyRoom:
    """One process at a time runs ``expiry``."""

    service: IdempotencyService
    expiry: Duty


def build_idempotency(
    database: Database, clock: Clock, *, secret: bytes, account_bytes: int
) -> IdempotencyRoom:
    service = IdempotencyService(database, clock, secret, account_bytes)
    return IdempotencyRoom(service, Duty("expiry of answers", service.expire))
