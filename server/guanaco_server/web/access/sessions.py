"""Signing in: an API key exchanged for a session, which ends by itself, by signing out, or with its key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import Unauthenticated
from guanaco_server.accounts.secrets import split_key
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.web import queries
from guanaco_server.web.access.viewer import hash_of, new_cookie
from guanaco_server.web.tables import SessionRow


@dataclass(frozen=True)
class NewSession:
    """``cookie`` is known to the browser alone."""

    cookie: str
    lifetime: timedelta
    account: Account


class SessionService:
    def __init__(
        self, database: Database, clock: Clock, accounts: AccountService, lifetime: timedelta
    ) -> None:
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._lifetime = lifetime

    async def begin(self, key: str) -> NewSession:
        """Unauthenticated for a key that opens nothing."""
        account = await self._accounts.authenticate(key)
        parts = split_key(key)
        assert parts is not None, "what authenticates has the form of a key"
        cookie, now = new_cookie(), self._clock.now()
        row = SessionRow(
            id=hash_of(cookie),
            key_id=parts[0],
            created_at=now,
            expires_at=now + self._lifetime,
        )

        async def begin(session: AsyncSession) -> None:
            await queries.remove_expired(session, now)
            session.add(row)

        await self._database.write_unit(begin)
        return NewSession(cookie, self._lifetime, account)

    async def account(self, cookie: str) -> Account | None:
        """Return the account that is signed in; None once the session has ended or its key was revoked."""
        async with self._database.read() as session:
            row = await queries.live_session(session, hash_of(cookie), self._clock.now())
        if row is None:
            return None
        try:
            return await self._accounts.account_of_key(row.key_id)
        except Unauthenticated:
            return None

    async def end(self, cookie: str) -> None:
        await self._database.write_unit(
            lambda session: queries.remove_session(session, hash_of(cookie))
        )
