"""The random numbers that browsers keep in cookies, and what follows from them.

A cookie is 256 random bits. The database knows its hash only; the token that every form carries is a MAC
under it (HMAC, RFC 2104), so that it fits no other cookie and needs no row of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

COOKIE_BYTES = 32
FORM = b"guanaco form"


def new_cookie() -> str:
    return secrets.token_urlsafe(COOKIE_BYTES)


def hash_of(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def form_token(cookie: str) -> str:
    return hmac.new(cookie.encode(), FORM, hashlib.sha256).hexdigest()


def is_form_token(token: str, cookie: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(token.encode(), form_token(cookie).encode())
