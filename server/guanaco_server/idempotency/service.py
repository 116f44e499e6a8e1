"""Answers a request once: who repeats it with the same Idempotency-Key within a day gets the first answer again.

    (new) ──begin──▶ claimed ──keep, finish──▶ answered ──(a day)──▶ (deleted)
                      │   ▲
                      │   └─ the lease of a process that died runs out, and whoever repeats the request claims it
                      └──release──▶ (deleted): the request failed, so repeating it tries again

A change that must not happen twice is committed together with its answer (keeping.py); other answers are stored before they are sent.
An account's answers may take ``account_bytes`` in the database: beyond, its oldest are deleted before their day is over.
The lease is renewed while the request is being answered. An answer is sealed with AES-256-GCM under a key that is
derived from the platform's secret, the account, the Idempotency-Key and the request, of which the database has only
hashes. So nobody reads from the database what a model said to a user, or the secret of a new API key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import IdempotencyConflict, RequestInProgress
from guanaco_server.database.database import Database
from guanaco_server.idempotency import queries
from guanaco_server.idempotency.keeping import AnswerKeeper, AnswerToKeep, KeptAnswer
from guanaco_server.runtime.clock import Clock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HONOURED = timedelta(days=1)
LEASE = timedelta(seconds=20)
MAX_ANSWER_BYTES = (
    1_048_576  # compressed; the longest reply, streamed token by token, is a tenth of it
)
EXPIRED_AT_ONCE = 500
ROW_BYTES = 512  # what a row takes beside its answer, with its indexes
COUNTS_PER_LIMIT = (
    16  # a process counts an account's bytes when it has stored this part of its limit
)
NONCE_BYTES = 12
PURPOSE = b"guanaco: the answers to idempotent requests"


@dataclass(frozen=True)
class KeyedRequest:
    """``content`` is everything that makes two requests the same: method, path, query and body."""

    account_id: str
    key: str
    content: bytes
    conversation_id: str | None = None

    @property
    def key_hash(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def request_hash(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class RequestClaim:
    """The right to answer a request."""

    request: KeyedRequest
    token: str


class IdempotencyService:
    def __init__(self, database: Database, clock: Clock, secret: bytes, account_bytes: int) -> None:
        """``secret`` is one that every process of the platform has; ``account_bytes`` 0 is no limit."""
        self._database = database
        self._clock = clock
        self._account_bytes = account_bytes
        self._stored: Counter[str] = Counter()  # by account, since its bytes were counted
        self._secret = hmac.digest(secret, PURPOSE, hashlib.sha256)

    async def begin(self, request: KeyedRequest) -> RequestClaim | KeptAnswer:
        """Claim a request, or return the answer that it had.

        Raises:
            IdempotencyConflict: The key was used with another request.
            RequestInProgress: The request is being answered now.
        """
        now, claim = self._clock.now(), RequestClaim(request, secrets.token_hex(16))
        claimed = {
            "request_hash": request.request_hash,
            "conversation_id": request.conversation_id,
            "created_at": now,
            "token": claim.token,
            "claimed_until": now + LEASE,
        }
        names = {"account_id": request.account_id, "key_hash": request.key_hash}
        await self._make_room(request.account_id)

        async def begin(session: AsyncSession) -> RequestClaim | KeptAnswer:
            await queries.insert(session, names | claimed)
            row = await queries.locked(session, request.account_id, request.key_hash)
            if row is None:  # released or erased at this very moment
                raise RequestInProgress
            if row.token == claim.token:
                return claim
            if row.created_at > now - HONOURED:
                if row.request_hash != request.request_hash:
                    raise IdempotencyConflict
                if row.answer is not None and (answer := self._open(request, row.answer)):
                    return answer
                if row.claimed_until is not None and row.claimed_until > now:
                    raise RequestInProgress
            for name, value in claimed.items():
                setattr(row, name, value)
            row.answer = None
            return claim

        return await self._database.write_unit(begin)

    async def renew(self, claim: RequestClaim) -> None:
        """Keep a claim while its request is being answered."""
        until = self._clock.now() + LEASE
        await self._database.write_unit(
            lambda session: queries.renew(session, *_names(claim), until), is_durable=False
        )

    def keeper(self, claim: RequestClaim) -> AnswerKeeper:
        """Return what stores the answer together with what the request changes."""

        def seal(answer: KeptAnswer) -> AnswerToKeep | None:
            sealed = self._counted(claim.request, answer)
            is_short = len(sealed) <= MAX_ANSWER_BYTES
            return AnswerToKeep(*_names(claim), sealed) if is_short else None

        return AnswerKeeper(seal)

    async def finish(self, claim: RequestClaim, answer: KeptAnswer) -> None:
        """Store the answer for a day. One that is too long to be kept is forgotten with its key."""
        sealed = self._counted(claim.request, answer)

        async def finish(session: AsyncSession) -> None:
            if len(sealed) > MAX_ANSWER_BYTES:
                await queries.drop(session, *_names(claim))
            else:
                await queries.store_answer(session, *_names(claim), sealed)

        await self._database.write_unit(finish)

    async def release(self, claim: RequestClaim) -> None:
        """Forget a request that failed, so that it can be tried again."""
        await self._database.write_unit(lambda session: queries.drop(session, *_names(claim)))

    async def forget(self, session: AsyncSession, conversation_ids: Sequence[str]) -> None:
        """Drop the answers about these conversations, within the transaction that erases or changes them."""
        await queries.drop_of_conversations(session, conversation_ids)

    async def expire(self) -> int:
        """Delete what is older than a day, some hundred at once; return how many."""
        before = self._clock.now() - HONOURED
        return await self._database.write_unit(
            lambda session: queries.drop_before(session, before, EXPIRED_AT_ONCE)
        )

    async def _make_room(self, account_id: str) -> None:
        """Delete an account's oldest answers if they take more than they may."""
        if not self._account_bytes:
            return
        if self._stored[account_id] < self._account_bytes // COUNTS_PER_LIMIT:
            return
        del self._stored[account_id]
        async with self._database.read() as session:
            before = await queries.newest_without_room(
                session, account_id, self._account_bytes, ROW_BYTES
            )
        if before is not None:
            await self._database.write_unit(
                lambda session: queries.drop_answers(session, account_id, before)
            )

    def _counted(self, request: KeyedRequest, answer: KeptAnswer) -> bytes:
        sealed = self._sealed(request, answer)
        self._stored[request.account_id] += len(sealed) + ROW_BYTES
        return sealed

    def _sealed(self, request: KeyedRequest, answer: KeptAnswer) -> bytes:
        head = json.dumps([answer.status, answer.headers]).encode()
        plain = len(head).to_bytes(4, "big") + head + answer.body
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher(request).encrypt(nonce, zlib.compress(plain), None)

    def _open(self, request: KeyedRequest, sealed: bytes) -> KeptAnswer | None:
        """Return None if the platform's secret has changed since."""
        from cryptography.exceptions import InvalidTag

        try:
            opened = self._cipher(request).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
        except InvalidTag:
            return None
        plain = zlib.decompress(opened)
        end = 4 + int.from_bytes(plain[:4], "big")
        status, headers, *_ = json.loads(plain[4:end])  # a newer version may say more
        return KeptAnswer(status, tuple((name, value) for name, value in headers), plain[end:])

    def _cipher(self, request: KeyedRequest) -> AESGCM:
        """Derive the key from what only the platform and whoever repeats the request have."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 6 MB, at the first use

        parts = (request.account_id.encode(), request.key.encode(), request.content)
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return AESGCM(hmac.digest(self._secret, message, hashlib.sha256))


def _names(claim: RequestClaim) -> tuple[str, str, str]:
    return claim.request.account_id, claim.request.key_hash, claim.token
