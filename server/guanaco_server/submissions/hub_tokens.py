"""Developers' own Hub tokens, one a submission: encrypted, and deleted once the weights are serialized; an
adapter's once its base's server has loaded it, for else it is merged.

AES-256-GCM under a key that is derived from the platform's secret; the submission's id is authenticated with it, so that no
row opens another submission's repo.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import InvalidInput
from guanaco_server.submissions import queries
from guanaco_server.submissions.tables import HubTokenRow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
MAX_TOKEN_CHARS = 512
PURPOSE = b"guanaco: the Hub tokens of developers"


class HubTokens:
    """``secret`` is one that every process of the platform has."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, PURPOSE, hashlib.sha256)

    @cached_property
    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 6 MB: most need it never

        return AESGCM(self._key)

    async def keep(
        self, session: AsyncSession, submission_id: str, token: SecretStr | None, at: datetime
    ) -> None:
        """Keep the token for the run that begins, in place of an earlier one; None keeps none."""
        await queries.delete_hub_token(session, submission_id)
        if token is None:
            return
        await queries.delete_unneeded_hub_tokens(session)
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, _readable(token), submission_id.encode())
        row = HubTokenRow(submission_id=submission_id, sealed=(nonce + sealed).hex(), kept_at=at)
        session.add(row)
        await session.flush()

    async def read(self, session: AsyncSession, submission_id: str) -> SecretStr | None:
        """Return None if none was given, it is deleted, or the platform's secret has changed since."""
        sealed = await queries.sealed_hub_token(session, submission_id)
        if sealed is None:
            return None
        from cryptography.exceptions import InvalidTag

        data = bytes.fromhex(sealed)
        try:
            token = self._cipher.decrypt(
                data[:NONCE_BYTES], data[NONCE_BYTES:], submission_id.encode()
            )
        except InvalidTag:
            return None
        return SecretStr(token.decode())


def _readable(token: SecretStr) -> bytes:
    """Return the token's bytes. The message of the error does not repeat it."""
    text = token.get_secret_value().strip()
    if not text.isascii() or not text.isprintable() or not 0 < len(text) <= MAX_TOKEN_CHARS:
        raise InvalidInput("The Hub token is no token: it has up to 512 printable characters.")
    return text.encode()
