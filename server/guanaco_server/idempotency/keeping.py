"""Stores the answer to a request in the transaction that carries the request out.

A process may die between the commit of a turn and that of its answer. Whoever repeats the request would then not find the
answer, and the turn would be taken twice. So whoever writes what must not be there twice stores the answer with it:

    keep_answer(session, result)     in a unit of work that belongs to this request alone
    answer_to(result)                before a write that is shared with others, which stores it by HELD and ANSWERED

Both do nothing for a request without an Idempotency-Key. A claim that another process has taken over meanwhile refuses the write:
the other is carrying the request out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import RequestInProgress
from guanaco_server.idempotency import queries

# Parts of one statement of PostgreSQL. ``kept_answers`` are rows (id, account_id, key_hash, token, answer), the answer in
# base64; ``answered_ids`` are the ids of what was written.
HELD = """
    SELECT k.id FROM kept_answers k JOIN idempotent_requests r
        ON r.account_id = k.account_id AND r.key_hash = k.key_hash AND r.token = k.token
    FOR UPDATE OF r
"""
ANSWERED = """
    UPDATE idempotent_requests SET
        answer = decode(k.answer, 'base64'), token = NULL, claimed_until = NULL
    FROM kept_answers k JOIN answered_ids ON answered_ids.id = k.id
    WHERE idempotent_requests.account_id = k.account_id
        AND idempotent_requests.key_hash = k.key_hash AND idempotent_requests.token = k.token
"""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An HTTP answer as it is sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class AnswerToKeep:
    """A sealed answer, and the claim that it ends."""

    account_id: str
    key_hash: str
    token: str
    sealed: bytes


class AnswerKeeper:
    """The answer to the request that this task carries out. ``form`` writes a result as it will be sent; None for another's.

    ``is_stored`` says that the answer was committed: it need not be stored when it is sent.
    """

    def __init__(self, seal: Callable[[KeptAnswer], AnswerToKeep | None]) -> None:
        self.form: Callable[[BaseModel], KeptAnswer | None] | None = None
        self.is_stored = False
        self._seal = seal

    def answer_to(self, result: BaseModel) -> AnswerToKeep | None:
        """Return None where the answer is too long to be kept, or is not this result."""
        answer = self.form(result) if self.form is not None else None
        return self._seal(answer) if answer is not None else None


_current: ContextVar[AnswerKeeper | None] = ContextVar("answer_keeper", default=None)
set_keeper = _current.set
reset_keeper = _current.reset
current_keeper = _current.get


def answer_to(result: BaseModel) -> AnswerToKeep | None:
    """Return the answer to this task's request, to be stored with what the request changes; None without a key."""
    keeper = current_keeper()
    return keeper.answer_to(result) if keeper is not None else None


async def keep_answer(session: AsyncSession, result: BaseModel) -> None:
    """Store the answer to this task's request within the caller's transaction.

    Raises:
        RequestInProgress: Another process has taken the request over.
    """
    if (answer := answer_to(result)) is not None:
        await store(session, answer)


async def store(session: AsyncSession, answer: AnswerToKeep) -> None:
    """Store an answer within the caller's transaction; RequestInProgress if the claim is another's by now."""
    names = (answer.account_id, answer.key_hash, answer.token)
    if not await queries.store_answer(session, *names, answer.sealed):
        raise RequestInProgress
