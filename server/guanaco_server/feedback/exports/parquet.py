"""Writes Parquet, one row group a page. Import it late: pyarrow is optional, and takes 60 MB of memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from guanaco_server.runtime import threads

TIME = pa.timestamp("us", tz="UTC")
MESSAGE = pa.struct(
    [
        ("id", pa.string()),
        ("sender", pa.string()),
        ("content", pa.string()),
        ("at", TIME),
        ("is_deleted", pa.bool_()),
        ("is_regenerated", pa.bool_()),
        ("ttft_ms", pa.float64()),
        ("total_ms", pa.float64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("submission_id", pa.string()),
        ("conversation_id", pa.string()),
        ("competition", pa.string()),
        ("variant", pa.string()),
        ("user", pa.string()),
        ("bot_name", pa.string()),
        ("first_message", pa.string()),
        ("thumbs_up", pa.bool_()),
        ("text", pa.string()),
        ("at", TIME),
        ("length", pa.int32()),
        ("params", pa.string()),  # as JSON
        ("messages", pa.list_(MESSAGE)),
    ]
)


class WriteBuffer:
    """A write-only file that is emptied as it grows."""

    def __init__(self) -> None:
        self.closed = False
        self._parts: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: the buffer holds everything until it is taken."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


async def encoded(documents: AsyncIterator[Sequence[str]]) -> AsyncIterator[bytes]:
    buffer = WriteBuffer()
    writer = pq.ParquetWriter(pa.PythonFile(buffer, mode="w"), SCHEMA, compression="zstd")
    async for page in documents:
        await threads.PAGES.run(writer.write_table, await threads.PAGES.run(_table, page))
        yield buffer.take()
    await threads.PAGES.run(writer.close)
    yield buffer.take()


def _table(page: Sequence[str]) -> pa.Table:
    return pa.Table.from_pylist([_row(json.loads(document)) for document in page], schema=SCHEMA)


def _row(feedback: dict[str, Any]) -> dict[str, Any]:
    return feedback | {
        "at": datetime.fromisoformat(feedback["at"]),
        "params": json.dumps(feedback["params"]),
        "messages": [_message(message) for message in feedback["messages"]],
    }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    timings = message["timings"] or {}
    return message | {
        "at": datetime.fromisoformat(message["at"]),
        "ttft_ms": timings.get("ttft_ms"),
        "total_ms": timings.get("total_ms"),
    }
