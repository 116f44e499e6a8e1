"""Make text from strangers safe for a terminal.

A model's reply or a user's rating may hold escape sequences that move the cursor, set the window's title
or write to the clipboard, and marks that reverse the reading direction. Each such character is replaced.
"""

from __future__ import annotations

import re

# C0 but newline and tab, DEL, C1, lone surrogates, and the Unicode marks that reorder or hide text.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Replace characters that can drive a terminal; lines stay."""
    return UNSAFE.sub(REPLACEMENT, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """Clean the text and join it into one line."""
    return " ".join(clean(text).split())


def escape_json(text: str) -> str:
    """Write such characters in a JSON document as escapes."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def csv_cell(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    from guanaco.feedback_csv import plain_cell

    return plain_cell(clean(text))
