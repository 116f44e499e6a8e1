"""A connection to PostgreSQL without the layers above its driver, for the few statements of the hot path.

Each statement is a transaction of its own. A connection that broke is made anew by the next statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from sqlalchemy.engine import make_url

CONNECT_TIMEOUT_S = 5


class DirectConnection:
    """One statement at a time; whoever comes meanwhile waits."""

    def __init__(self, sqlalchemy_url: str, is_durable: bool = True) -> None:
        """``is_durable`` false: a commit need not wait for the disk (``synchronous_commit = off``)."""
        url = make_url(sqlalchemy_url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._is_durable = is_durable
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    async def fetch(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Its rows. psycopg.Error; the connection is thrown away when it broke, or when the caller left in the middle."""
        async with self._lock:
            connection = self._connection or await self._connect()
            self._connection = None
            try:
                cursor = await connection.execute(statement, parameters)
                rows = await cursor.fetchall()
            except psycopg.DatabaseError:
                if not connection.closed and not connection.broken:
                    self._connection = connection
                else:
                    await connection.close()
                raise
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
            return rows

    async def close(self) -> None:
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
        )
        if not self._is_durable:
            await connection.execute("SET synchronous_commit = off")
        return connection
