"""Writes copies as a file (JSON lines, CSV or Parquet) page by page, so that memory does not grow with their number."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from guanaco.contract import reader
from guanaco.errors import ExportUnsupported
from guanaco.feedback import ExportFormat, Feedback
from guanaco.feedback_csv import CSV_COLUMNS, csv_row, plain_cell
from guanaco_server.runtime import threads

Documents = AsyncIterator[Sequence[str]]

NDJSON = "application/x-ndjson"
MEDIA_TYPES: dict[ExportFormat, str] = {
    "jsonl": NDJSON,
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class Export:
    """A file under way. ``next_cursor`` is known beforehand: ratings that arrive meanwhile are left to the next export."""

    file_name: str
    media_type: str
    next_cursor: str
    chunks: AsyncIterator[bytes]


def formats() -> tuple[ExportFormat, ...]:
    """Return the formats that can be written here."""
    return tuple(form for form in MEDIA_TYPES if form != "parquet" or _has_parquet())


def encoded(documents: Documents, form: ExportFormat) -> AsyncIterator[bytes]:
    """Encode documents. ExportUnsupported for Parquet where pyarrow is missing."""
    match form:
        case "jsonl":
            return _lines(documents)
        case "csv":
            return _csv(documents)
        case "parquet":
            if not _has_parquet():
                raise ExportUnsupported("parquet", "pip install 'guanaco-platform[export]'")
            return _parquet(documents)


def _has_parquet() -> bool:
    return find_spec("pyarrow") is not None


async def _lines(documents: Documents) -> AsyncIterator[bytes]:
    async for page in documents:
        yield "".join(f"{document}\n" for document in page).encode()


async def _csv(documents: Documents) -> AsyncIterator[bytes]:
    yield _csv_lines([CSV_COLUMNS])
    async for page in documents:
        yield await threads.PAGES.run(_csv_page, page)


def _csv_page(page: Sequence[str]) -> bytes:
    ratings = (reader(Feedback).from_json(document) for document in page)
    return _csv_lines([[_cell(cell) for cell in csv_row(rating)] for rating in ratings])


def _csv_lines(rows: Sequence[Sequence[object]]) -> bytes:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\r\n").writerows(rows)  # RFC 4180
    return lines.getvalue().encode()


def _cell(value: object) -> object:
    return plain_cell(value) if isinstance(value, str) else value


async def _parquet(documents: Documents) -> AsyncIterator[bytes]:
    """Encode Parquet. Importing pyarrow takes a second, so a thread does it."""
    parquet = await threads.PAGES.run(import_module, "guanaco_server.feedback.exports.parquet")
    async for chunk in parquet.encoded(documents):
        yield chunk
