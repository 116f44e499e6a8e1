"""A live connection to PostgreSQL, driven through its client library: psycopg connects it, then its cursors are out of the way.

    idle ──send──▶ sending ──flushed──▶ waiting ──last result read──▶ idle
     └───────────────── the server hangs up, close() ─────────────────▶ closed

Its socket is watched all the time, so that a server that hangs up is noticed while nothing is asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult


class LibpqConnection:
    """One statement at a time. After anything that ``execute`` raises it must be closed: what comes next is not known."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """In autocommit, with nothing under way; closed by ``close`` from now on."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = self._pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[str, bytes] = {}
        self._waiting: asyncio.Future[PGresult] | None = None
        self._result: PGresult | None = None
        self._is_sending = False
        self.is_closed = False
        self._loop.add_reader(self._socket, self._read)

    async def execute(self, statement: str, parameters: Sequence[bytes | None]) -> PGresult:
        """Return the result once it is committed, or raise the server's refusal; prepared at its first use. psycopg.OperationalError when the connection breaks."""
        name = self._prepared.get(statement)
        if name is None:
            name = b"direct_%d" % len(self._prepared)
            self._pgconn.send_prepare(name, statement.encode())
            prepared = await self._answer()
            if prepared.status != ExecStatus.COMMAND_OK:
                return prepared
            self._prepared[statement] = name
        self._pgconn.send_query_prepared(name, parameters)
        return await self._answer()

    @staticmethod
    def rows(result: PGresult) -> list[tuple[Any, ...]]:
        """Return a result's rows, of text or None; psycopg.Error for a refusal."""
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result)
        columns = range(result.nfields)
        return [
            tuple([_decode(result.get_value(row, column)) for column in columns])
            for row in range(result.ntuples)
        ]

    def close(self) -> None:
        """May be repeated. A statement under way may be carried out or not."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._socket)
        if self._is_sending:
            self._loop.remove_writer(self._socket)
        self._pgconn.finish()

    async def _answer(self) -> PGresult:
        self._result = None
        waiting: asyncio.Future[PGresult] = self._loop.create_future()
        self._waiting = waiting
        self._send()
        try:
            return await waiting
        finally:
            self._waiting = None

    def _send(self) -> None:
        """Send as much as the socket takes now, and the rest when it takes more."""
        try:
            is_sending = bool(self._pgconn.flush())
        except psycopg.Error as error:
            self._break(error)
            return
        if is_sending and not self._is_sending:
            self._loop.add_writer(self._socket, self._send)
        elif self._is_sending and not is_sending:
            self._loop.remove_writer(self._socket)
        self._is_sending = is_sending

    def _read(self) -> None:
        """A statement ends, committed, where there is no further result; an error may follow its rows."""
        try:
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    break
                if self._result is None or self._result.status == ExecStatus.TUPLES_OK:
                    self._result = result
            else:
                return
        except psycopg.Error as error:
            self._break(error)
            return
        if self._waiting is not None and self._result is not None and not self._waiting.done():
            self._waiting.set_result(self._result)

    def _break(self, error: psycopg.Error) -> None:
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
