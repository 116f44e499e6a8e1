"""A connection to PostgreSQL without the layers above its client library, for the few statements of the hot path.

Each statement is a transaction of its own, prepared at its first use, its parameters ``$1``, ``$2`` … and its results
text. The next statement replaces a connection that broke.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from guanaco_server.database.postgresql.libpq import LibpqConnection

ANSWER_TIMEOUT_S = 15.0  # statements take milliseconds: whoever says nothing for so long will not
# A host that is gone without a word is noticed within a quarter of a minute, instead of the kernel's quarter of an hour.
NETWORK: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
# A plan is made once, before the tables have grown, and every statement finds its rows by an index: planned for the
# table of the first minute, it would read all of a bigger one (0.6 ms instead of 0.2 ms at 3,000 conversations).
PLANNING = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET jit = off;
"""
NOT_DURABLE = "SET synchronous_commit = off;"

Row = tuple[Any, ...]  # of text, or None


class DirectConnection:
    """One statement at a time; whoever comes meanwhile waits."""

    def __init__(
        self,
        sqlalchemy_url: str,
        is_durable: bool = True,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """``is_durable`` false: a commit need not wait for the disk (``synchronous_commit = off``)."""
        url = make_url(sqlalchemy_url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._answer_timeout_s = answer_timeout_s
        self._settings: LiteralString = PLANNING if is_durable else PLANNING + NOT_DURABLE
        self._connection: LibpqConnection | None = None
        self._lock = asyncio.Lock()

    async def fetch(
        self, statement: LiteralString, parameters: Sequence[str | bytes | None]
    ) -> list[Row]:
        """Return the rows. psycopg.Error; the connection is thrown away when it broke or fell silent, or when the caller left in the middle."""
        encoded = [_encode(parameter) for parameter in parameters]
        async with self._lock:
            connection = self._connection
            if connection is None or connection.is_closed:
                connection = self._connection = await self._connect()
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    result = await connection.execute(statement, encoded)
            except BaseException as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    import psycopg

                    raise psycopg.OperationalError("the database does not answer") from None
                raise
        return connection.rows(result)

    async def close(self) -> None:
        async with self._lock:
            if self._connection is not None:
                self._connection.close()

    async def _connect(self) -> LibpqConnection:
        import psycopg

        from guanaco_server.database.postgresql.libpq import LibpqConnection

        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, **NETWORK
        )
        try:
            await connection.execute(self._settings)
            return LibpqConnection(connection)
        except BaseException:
            await connection.close()
            raise


def lost_connection(*also: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what is raised where the database is away. A process on SQLite need not have psycopg for that (6 MB)."""
    if (psycopg := sys.modules.get("psycopg")) is None:
        return (*also, OSError)
    return (*also, psycopg.OperationalError, psycopg.InterfaceError, OSError)


def text_array(values: Iterable[str]) -> str:
    """Return a parameter of type ``text[]``."""
    return f"{{{','.join(_quote(value) for value in values)}}}"


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _encode(parameter: str | bytes | None) -> bytes | None:
    encoded = parameter.encode() if isinstance(parameter, str) else parameter
    if encoded is not None and b"\x00" in encoded:  # would end there, unnoticed
        from psycopg import DataError

        raise DataError("PostgreSQL text cannot hold NUL")
    return encoded
