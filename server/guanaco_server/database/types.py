"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from sqlalchemy import JSON, DateTime, Dialect, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from guanaco.contract import Reader, to_stored
from guanaco.open_enum import OpenEnum

JsonColumn = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes in, aware UTC datetimes out; SQLite keeps no time zone of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Pydantic(TypeDecorator[BaseModel]):
    """A frozen pydantic model, or one of several, stored as JSON.

    A row that a newer version wrote is read tolerantly (``guanaco.contract``), and written back with the fields
    that this version does not know.
    """

    impl = JsonColumn
    cache_ok = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._reader: Reader[BaseModel] = Reader(model, keeps_unknown_fields=True)

    def process_bind_param(self, value: BaseModel | None, dialect: Dialect) -> Any:
        return None if value is None else to_stored(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> BaseModel | None:
        return None if value is None else self._reader.from_python(value)


class EnumText(TypeDecorator[OpenEnum]):
    """An enum, stored as its value. A value that a newer version wrote is read as an unknown member."""

    impl = String
    cache_ok = True

    def __init__(self, enum: type[OpenEnum], length: int = 16) -> None:
        super().__init__(length)
        self.enum = enum
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return (value if isinstance(value, self.enum) else self.enum(value)).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> OpenEnum | None:
        return None if value is None else self.enum.read(value)
