"""The guard of every route: a bearer key, and a role that may enter. An admin may enter everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Depends, Request

from guanaco.accounts import Role
from guanaco.errors import Forbidden, Unauthenticated
from guanaco_server.accounts.service import Account, AccountService

BEARER = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "`Authorization: Bearer KEY`, with a key that `guanaco keys create` makes.",
    }
}


class Auth:
    """``key_of`` finds the key in a request, or raises Unauthenticated; ``schemes`` tell OpenAPI where it may be."""

    def __init__(
        self,
        accounts: AccountService,
        key_of: Callable[[Request], str] | None = None,
        schemes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._accounts = accounts
        self._key_of = key_of or bearer_key
        self._schemes = schemes or BEARER

    def require(self, *roles: Role) -> Any:
        """Return a FastAPI dependency that gives the caller's Account."""
        return Depends(self.guard(*roles))

    def guard(self, *roles: Role) -> Callable[[Request], Awaitable[Account]]:
        enter = self.entrance(*roles)

        async def guard(request: Request) -> Account:
            return await enter(self._key_of(request))

        guard.schemes = self._schemes  # type: ignore[attr-defined]  # read by http/openapi.py, as the roles are
        guard.roles = frozenset(roles) | {Role.ADMIN}  # type: ignore[attr-defined]  # read by the test that walks every route
        return guard

    def entrance(self, *roles: Role) -> Callable[[str], Awaitable[Account]]:
        """Return a check that turns a key into its Account, or raises Unauthenticated or Forbidden."""
        allowed = frozenset(roles) | {Role.ADMIN}

        async def enter(key: str) -> Account:
            account = await self._accounts.authenticate(key)
            if account.role not in allowed:
                raise Forbidden(
                    f"This needs a key with the role {' or '.join(sorted(allowed))}; yours is {account.role}.",
                    hint="An operator makes one with `guanaco keys create --role …`.",
                )
            return account

        return enter


def bearer_key(request: Request) -> str:
    return key_in(request.headers.get("authorization", ""))


def key_in(authorization: str) -> str:
    """Take the key from an Authorization header; Unauthenticated when there is none in it."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("The request carries no API key.")
    return key.strip()
