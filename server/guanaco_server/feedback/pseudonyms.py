"""Users as developers see them: of two backends' users of one id each has her own pseudonym."""

from __future__ import annotations

import hashlib
import hmac

DIGITS = 12  # 48 bits: among a million users, two share one with a chance of 0.2 %


class Pseudonyms:
    """Keyed, so that nobody without the key can test whether a known id is behind a pseudonym (HMAC, RFC 2104)."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, user_key: str) -> str:
        digest = hmac.new(self._key, user_key.encode(), hashlib.sha256).hexdigest()
        return "user_" + digest[:DIGITS]
