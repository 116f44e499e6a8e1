"""Whole transactions in one trip to a connection's thread, so that SQLite's write lock is held no longer while the event loop is busy.

    trip            a transaction, with one commit for all writes that wait
      write         in a savepoint if there are others: one that fails leaves nothing, and takes no other one with it
        unit        asynchronous code with a session, which is carried out here: its statements wait for nothing

If the commit fails, all of them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from guanaco_server.database.sqlite.connection import (
    BEGIN_SAVEPOINT,
    END_SAVEPOINT,
    UNDO_SAVEPOINT,
    ResultConnection,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Write(Generic[T]):
    """One change of the database. Without ``is_durable`` it may be lost when the machine fails, though not when the process does.

    ``tell`` is called with its result after the commit, in the thread, also where nobody waits for the result any more.
    """

    do: Callable[[ResultConnection], T]
    is_durable: bool = True
    tell: Callable[[T], object] | None = None


def transact(connection: ResultConnection, writes: Sequence[Write[Any]]) -> list[Any]:
    """Carry out all writes in one transaction; the result of each, or its error."""
    connection.be_durable(any(write.is_durable for write in writes))
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = (
            [write.do(connection) for write in writes]
            if len(writes) == 1  # it is undone by undoing everything
            else [_carry_out(write, connection) for write in writes]
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    for write, result in zip(writes, results, strict=True):
        if write.tell is not None and not isinstance(result, Exception):
            write.tell(result)
    return results


def _carry_out(write: Write[T], connection: ResultConnection) -> T | Exception:
    result: T | Exception
    connection.execute(BEGIN_SAVEPOINT)
    try:
        result = write.do(connection)
    except Exception as error:
        if not connection.in_transaction:  # SQLite has rolled back everything: its disk is full
            raise
        connection.execute(UNDO_SAVEPOINT)
        result = error
    connection.execute(END_SAVEPOINT)
    return result


def carry_out(unit: Coroutine[Any, Any, T]) -> T:
    """Carry out in this thread what awaits nothing that would have to be waited for."""
    try:
        unit.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    unit.close()
    raise RuntimeError("A unit that is written in one trip may await its session only.")
