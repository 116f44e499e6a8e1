"""Who looks at a page."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.accounts import Role
from guanaco_server.accounts.service import Account
from guanaco_server.web import tokens


@dataclass(frozen=True)
class Viewer:
    """``account`` is None for the public; ``cookie`` is what the forms' token is bound to."""

    account: Account | None = None
    cookie: str = ""

    @property
    def form_token(self) -> str:
        return tokens.form_token(self.cookie)

    @property
    def is_admin(self) -> bool:
        return self.account is not None and self.account.role is Role.ADMIN

    @property
    def is_developer(self) -> bool:
        return self.account is not None and self.account.role is not Role.BACKEND


NOBODY = Viewer()
