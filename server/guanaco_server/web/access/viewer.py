"""Identifies the viewer of a page by a random number that their browser keeps in a cookie.

A cookie is 256 random bits. The database stores only its hash. The token in every form is an HMAC (RFC 2104)
under the cookie, so that it is valid with no other cookie and needs no row of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from guanaco.accounts import Role
from guanaco_server.accounts.service import Account

COOKIE_BYTES = 32
FORM = b"guanaco form"


def new_cookie() -> str:
    return secrets.token_urlsafe(COOKIE_BYTES)


def hash_of(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def form_token(cookie: str) -> str:
    return hmac.new(cookie.encode(), FORM, hashlib.sha256).hexdigest()


def is_form_token(token: str, cookie: str) -> bool:
    """Return whether the token is the cookie's. The comparison takes constant time."""
    return hmac.compare_digest(token.encode(), form_token(cookie).encode())


@dataclass(frozen=True)
class Viewer:
    """The viewer of a page. ``account`` is None for the public; the forms' token is bound to ``cookie``."""

    account: Account | None = None
    cookie: str = ""

    @property
    def form_token(self) -> str:
        return form_token(self.cookie)

    @property
    def is_admin(self) -> bool:
        return self.account is not None and self.account.role is Role.ADMIN

    @property
    def is_developer(self) -> bool:
        return self.account is not None and self.account.role is not Role.BACKEND


NOBODY = Viewer()
