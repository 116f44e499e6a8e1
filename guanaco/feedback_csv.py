"""Feedback as rows of CSV, for the server's export and the command's output; cells that no spreadsheet runs as a formula."""

from __future__ import annotations

import json

from guanaco.chat import Message
from guanaco.feedback import Feedback

FORMULA_STARTS = (
    "=",
    "+",
    "-",
    "@",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # and their full-width twins
CSV_COLUMNS = (
    "id", "at", "submission_id", "conversation_id", "user", "bot_name", "first_message", "thumbs_up", "text",
    "messages", "timings", "length", "params", "competition", "variant",
)  # fmt: skip


def csv_row(one: Feedback) -> list[object]:
    """The conversation is one cell, a message a line; ``timings`` is a JSON list, null for each user's message."""
    cells = one.model_dump(mode="json", exclude={"messages", "params"}) | {
        "at": one.at.isoformat(),
        "thumbs_up": str(one.thumbs_up).lower(),
        "messages": "\n".join(map(_line, one.messages)),
        "timings": json.dumps([_timings(message) for message in one.messages]),
        "params": one.params.model_dump_json() if one.params else None,
    }
    return [cells[column] for column in CSV_COLUMNS]


def _line(message: Message) -> str:
    mark = " (deleted)" if message.is_deleted else " (again)" if message.is_regenerated else ""
    return f"{message.sender}{mark}: {message.content}"


def _timings(message: Message) -> dict[str, float] | None:
    return message.timings.model_dump() if message.timings else None


def plain_cell(text: str) -> str:
    """Return the text, which no spreadsheet will take for a formula: a stranger's formula could send the sheet elsewhere."""
    return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text
