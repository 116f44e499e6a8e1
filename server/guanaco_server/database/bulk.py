"""Many rows in one statement: on PostgreSQL written from one JSON parameter, several times as fast as a statement a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVarTuple

from sqlalchemy import Row, Select, cast, column, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import UserDefinedType

from guanaco_server.database.tables import Table

Rows = Sequence[Mapping[str, Any]]  # each with the same columns
Insert = postgresql.Insert | sqlite.Insert
Columns = TypeVarTuple("Columns")


class BulkInsert:
    """``statement`` takes ON CONFLICT and RETURNING; ``parameters`` go with it when it is executed."""

    def __init__(self, session: AsyncSession, table: type[Table], rows: Rows) -> None:
        self.parameters: Rows | None = None
        self.statement: Insert
        if session.get_bind().dialect.name == "postgresql":
            self.statement = _from_json(table, rows)
        else:
            self.statement, self.parameters = sqlite.insert(table), rows


async def upsert(session: AsyncSession, table: type[Table], rows: Rows) -> None:
    """Insert rows, or replace those columns in the rows that have the same primary key."""
    if not rows:
        return
    keys = [column.name for column in table.__table__.primary_key]
    bulk = BulkInsert(session, table, rows)
    others = {name: bulk.statement.excluded[name] for name in rows[0] if name not in keys}
    statement = (
        bulk.statement.on_conflict_do_update(index_elements=keys, set_=others)
        if others
        else bulk.statement.on_conflict_do_nothing()
    )
    await session.execute(statement, bulk.parameters)


async def insert_missing(session: AsyncSession, table: type[Table], rows: Rows) -> None:
    """Insert the rows whose primary key is not in the table yet."""
    if rows:
        bulk = BulkInsert(session, table, rows)
        await session.execute(bulk.statement.on_conflict_do_nothing(), bulk.parameters)


async def plain_rows(session: AsyncSession, statement: Select[*Columns]) -> Sequence[Row[*Columns]]:
    """Read columns, not objects, past the session's loading of objects, which takes as long again."""
    await session.flush()
    connection = await session.connection()
    return (await connection.execute(statement)).all()


def _from_json(table: type[Table], rows: Rows) -> postgresql.Insert:
    columns = table.__table__.columns
    typed = [column(name, columns[name].type) for name in rows[0]]
    text = json.dumps([dict(row) for row in rows], default=_iso)
    source = func.json_to_recordset(cast(text, JSON_TEXT)).table_valued(*typed)
    listed = select(*source.render_derived(with_types=True).c)
    return postgresql.insert(table).from_select(list(rows[0]), listed, include_defaults=False)


def _iso(value: object) -> str:
    assert isinstance(value, datetime), "rows are of text, numbers, truths and times"
    return value.isoformat()


class _JsonText(UserDefinedType[str]):
    """JSON that is sent as it is."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        return "JSON"


JSON_TEXT = _JsonText()
