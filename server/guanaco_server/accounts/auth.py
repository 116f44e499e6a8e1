"""The guard of every route: a bearer key, and a role that may enter. An admin may enter everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, Request

from guanaco.accounts import Role
from guanaco.errors import Forbidden, Unauthenticated
from guanaco_server.accounts.service import Account, AccountService


class Auth:
    """``key_of`` finds the key in a request, or raises Unauthenticated."""

    def __init__(
        self, accounts: AccountService, key_of: Callable[[Request], str] | None = None
    ) -> None:
        self._accounts = accounts
        self._key_of = key_of or bearer_key

    def require(self, *roles: Role) -> Any:
        """A FastAPI dependency that gives the caller's Account."""
        return Depends(self.guard(*roles))

    def guard(self, *roles: Role) -> Callable[[Request], Awaitable[Account]]:
        allowed = frozenset(roles) | {Role.ADMIN}

        async def guard(request: Request) -> Account:
            account = await self._accounts.authenticate(self._key_of(request))
            if account.role not in allowed:
                raise Forbidden(
                    f"This needs a key with the role {' or '.join(sorted(allowed))}; yours is {account.role}.",
                    hint="An operator makes one with `guanaco keys create --role …`.",
                )
            return account

        guard.roles = allowed  # type: ignore[attr-defined]  # read by the test that walks every route
        return guard


def bearer_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("The request carries no API key.")
    return key.strip()
