"""Accounts and the keys that speak for them. An account has one role, and so has each of its keys."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import ApiKey, CreatedKey, KeyRequest, Role
from guanaco.errors import (
    AccountNotFound,
    AccountRoleConflict,
    KeyNotFound,
    LastAdminKey,
    Unauthenticated,
)
from guanaco_server.accounts import queries, secrets
from guanaco_server.accounts.audit import Actor, AuditLog
from guanaco_server.accounts.tables import AccountRow, ApiKeyRow
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock

LAST_USED_STEP = timedelta(minutes=1)  # `last_used_at` need not cost a write per request
KNOWN_FOR_S = 2.0  # a key that was revoked elsewhere opens for so long here
KNOWN_KEYS = 10_000
CREATE_KEY, REVOKE_KEY = "create key", "revoke key"


@dataclass(frozen=True)
class Account:
    """``may_choose_models`` is a right of the key that was shown."""

    id: str
    name: str
    role: Role
    may_choose_models: bool = False


class AccountService:
    def __init__(self, database: Database, clock: Clock, audit: AuditLog) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit
        self._known: dict[bytes, tuple[Account, float]] = {}

    async def create_key(self, request: KeyRequest, by: Actor | None = None) -> CreatedKey:
        """Return a new key, and its account if the name is new. The secret is in this answer only. ``by`` is None for the platform itself."""

        async def create(session: AsyncSession) -> CreatedKey:
            created = await self._add_key(session, request)
            if by is not None:
                await self._audit.note(session, by, CREATE_KEY, _named(created))
            return created

        return await self._database.write_unit(create)

    async def create_first_key(self) -> CreatedKey | None:
        """Make an admin key where none works, as on a platform that has no key at all; None where one does."""

        async def create(session: AsyncSession) -> CreatedKey | None:
            if await queries.working_admin_keys(session):
                return None
            name = await queries.name_of_an_admin(session) or "admin"
            return await self._add_key(session, KeyRequest(name=name, role=Role.ADMIN))

        return await self._database.write_unit(create)

    async def list_keys(self) -> list[ApiKey]:
        async with self._database.read() as session:
            return [_read(row) for row in await queries.all_keys(session)]

    async def require_key(self, key_id: str) -> None:
        """Raise KeyNotFound where there is no such key."""
        async with self._database.read() as session:
            if await queries.key_by_id(session, key_id) is None:
                raise KeyNotFound(key_id)

    async def revoke_key(self, key_id: str, by: Actor) -> ApiKey:
        """Revoke a key; revoking twice keeps the first time. LastAdminKey for the only admin key that works."""

        async def revoke(session: AsyncSession) -> ApiKey:
            row = await queries.key_by_id(session, key_id)
            if row is None:
                raise KeyNotFound(key_id)
            is_news = row.revoked_at is None
            if is_news and row.account.role == Role.ADMIN:
                await self._require_another(session, key_id)
            row.revoked_at = row.revoked_at or self._clock.now()
            revoked = _read(row)
            if is_news:
                await self._audit.note(session, by, REVOKE_KEY, _named(revoked))
            return revoked

        revoked = await self._database.write_unit(revoke)
        self._known.clear()
        return revoked

    @staticmethod
    async def _require_another(session: AsyncSession, key_id: str) -> None:
        """The rows stay locked until the transaction ends, so two admins cannot revoke each other's last key."""
        if await queries.working_admin_keys(session) == [key_id]:
            raise LastAdminKey(key_id)

    async def authenticate(self, key: str) -> Account:
        """Return the account that a key speaks for; Unauthenticated for a wrong or revoked one. Asked of the database every two seconds."""
        digest = secrets.digest(key)
        known = self._known.get(digest)
        now = time.monotonic()
        if known is not None:
            if now < known[1]:
                return known[0]
            self._known[digest] = known[0], now + KNOWN_FOR_S  # one asks, the others need not wait
        try:
            account = await self._look_up(key)
        except BaseException:
            self._known.pop(digest, None)
            raise
        if len(self._known) >= KNOWN_KEYS:
            self._known.clear()
        self._known[digest] = account, now + KNOWN_FOR_S
        return account

    async def _look_up(self, key: str) -> Account:
        parts = secrets.split_key(key)
        if parts is None:
            raise Unauthenticated
        key_id, secret = parts
        async with self._database.read() as session:
            row = await queries.key_by_id(session, key_id)
            known_hash = row.secret_hash if row else secrets.hash_secret("")
            is_right = secrets.is_secret(secret, known_hash)
        if row is None or not is_right or row.revoked_at is not None:
            raise Unauthenticated
        await self._note_use(row)
        return _account(row.account, row.may_choose_models)

    async def account_of_key(self, key_id: str) -> Account:
        """Find the account of a key that was shown to be right before; Unauthenticated once it is revoked."""
        async with self._database.read() as session:
            row = await queries.key_by_id(session, key_id)
        if row is None or row.revoked_at is not None:
            raise Unauthenticated
        await self._note_use(row)
        return _account(row.account, row.may_choose_models)

    async def named(self, name: str) -> Account:
        """AccountNotFound where there is none of that name."""
        async with self._database.read() as session:
            row = await queries.account_by_name(session, name)
        if row is None:
            raise AccountNotFound(name)
        return _account(row)

    async def role_of(self, account_id: str) -> Role:
        async with self._database.read() as session:
            return (await queries.account_by_id(session, account_id)).role

    async def built_in(self, name: str, role: Role) -> Account:
        """Return an account of the platform's own, which needs no key; made if new. AccountRoleConflict if it has another role."""

        async def find_or_add(session: AsyncSession) -> Account:
            return _account(await self._find_or_add(session, name, role))

        return await self._database.write_unit(find_or_add)

    async def require_named(self, session: AsyncSession, name: str | None) -> str | None:
        """Within the caller's transaction: the id of the account of that name; AccountNotFound. Return None if no account has the name."""
        if name is None:
            return None
        row = await queries.account_by_name(session, name)
        if row is None:
            raise AccountNotFound(name)
        return row.id

    async def _note_use(self, seen: ApiKeyRow) -> None:
        now = self._clock.now()
        if seen.last_used_at is not None and now - seen.last_used_at < LAST_USED_STEP:
            return

        async def note(session: AsyncSession) -> None:
            row = await queries.key_by_id(session, seen.id)
            if row is not None:
                row.last_used_at = now

        await self._database.write_unit(note, is_durable=False)

    async def _add_key(self, session: AsyncSession, request: KeyRequest) -> CreatedKey:
        now = self._clock.now()
        account = await self._find_or_add(session, request.name, request.role)
        new = secrets.new_key()
        row = ApiKeyRow(
            id=new.id,
            account=account,
            secret_hash=new.secret_hash,
            may_choose_models=request.may_choose_models,
            created_at=now,
        )
        session.add(row)
        return CreatedKey(key=new.text, **_read(row).model_dump())

    async def _find_or_add(self, session: AsyncSession, name: str, role: Role) -> AccountRow:
        row = await queries.account_by_name(session, name)
        if row is None:
            row = AccountRow(
                id=uuid.uuid4().hex, name=name, role=role, created_at=self._clock.now()
            )
            session.add(row)
        elif row.role != role:
            raise AccountRoleConflict(name, row.role)
        return row


def _account(row: AccountRow, may_choose_models: bool = False) -> Account:
    return Account(row.id, row.name, row.role, may_choose_models)


def _named(key: ApiKey) -> str:
    return f"{key.id} of {key.name} ({key.role})"


def _read(row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.account.name,
        role=row.account.role,
        may_choose_models=row.may_choose_models,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
