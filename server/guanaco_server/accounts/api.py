"""Keys, and who the caller is."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from guanaco.accounts import ApiKey, AuditPage, CreatedKey, Identity, KeyRequest, Role
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.http.routes import Routes

Limit = Annotated[int, Query(ge=1, le=500)]


def router(accounts: AccountService, audit: AuditLog, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["accounts"])
    anyone = auth.require(*Role)
    admin = auth.require(Role.ADMIN)

    @routes.get("/me")
    async def read_identity(account: Account = anyone) -> Identity:
        return Identity(name=account.name, role=account.role)

    @routes.post("/keys", status_code=201)
    async def create_key(request: KeyRequest, account: Account = admin) -> CreatedKey:
        return await accounts.create_key(request, account)

    @routes.get("/keys")
    async def list_keys(account: Account = admin) -> list[ApiKey]:
        return await accounts.list_keys()

    @routes.post("/keys/{key_id}/revoke")
    async def revoke_key(key_id: str, account: Account = admin) -> ApiKey:
        return await accounts.revoke_key(key_id, account)

    @routes.get("/audit", dependencies=[admin])
    async def read_audit_log(cursor: str | None = None, limit: Limit = 100) -> AuditPage:
        """List what admins did, newest first: reading or erasing users' data, keys, competitions, others' submissions."""
        return await audit.list(limit, cursor)

    return routes
