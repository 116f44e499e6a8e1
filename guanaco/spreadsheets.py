"""Cells that a spreadsheet takes for what they are."""

from __future__ import annotations

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


def plain_cell(text: str) -> str:
    """The text, which no spreadsheet will take for a formula: a stranger's formula could send the sheet elsewhere."""
    return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text
