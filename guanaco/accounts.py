"""Models of accounts: roles and API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guanaco.forms import AccountName
from guanaco.open_enum import OpenEnum


class Role(OpenEnum):
    """A key has one role. ``admin`` may do everything."""

    DEVELOPER = "developer"
    BACKEND = "backend"
    ADMIN = "admin"


class KeyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role
    name: AccountName = Field(description="The account the key belongs to; made if new.")
    may_choose_models: bool = Field(
        default=False,
        description="A backend's key may open conversations with a submission that it names.",
    )

    @model_validator(mode="after")
    def _is_a_backends_right(self) -> Self:
        if self.may_choose_models and self.role is not Role.BACKEND:
            raise ValueError(
                "may_choose_models is for a backend's key: developers choose their own submissions, admins any"
            )
        return self


class ApiKey(BaseModel):
    """An API key as it is shown after its creation; its secret is stored only as a hash."""

    id: str
    name: str
    role: Role
    may_choose_models: bool = False
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class CreatedKey(ApiKey):
    """The one answer that carries the secret."""

    key: str


class Identity(BaseModel):
    """The account that a key belongs to."""

    name: str
    role: Role


class AuditEntry(BaseModel):
    """``account`` did ``action`` to ``subject``, which is never a user's own id."""

    id: int
    at: datetime
    account: str
    action: str
    subject: str


class AuditPage(BaseModel):
    items: list[AuditEntry]
    next_cursor: str | None = None
