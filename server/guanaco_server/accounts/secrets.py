"""API keys: ``gk_<id>_<secret>``, random, recognisable by secret scanners, and stored only as a hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

PREFIX = "gk"
ID_BYTES = 5
SECRET_BYTES = 24  # 192 bits: nothing to guess, so one plain SHA-256 is enough


@dataclass(frozen=True)
class NewKey:
    id: str
    text: str
    secret_hash: str


def new_key() -> NewKey:
    key_id = secrets.token_hex(ID_BYTES)
    secret = secrets.token_hex(SECRET_BYTES)
    return NewKey(key_id, f"{PREFIX}_{key_id}_{secret}", hash_secret(secret))


def split_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key's text; None if it is not of the form."""
    parts = text.split("_")
    if len(parts) != 3 or parts[0] != PREFIX or not text.isascii():
        return None
    return parts[1], parts[2]


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret(secret: str, secret_hash: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(hash_secret(secret), secret_hash)


def digest(key: str) -> bytes:
    """Hash a whole key, so that memory need not hold keys."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
