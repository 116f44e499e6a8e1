"""JSON objects that strangers wrote, read within limits."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 4_000_000  # twice 262,000 words and 515,000 merges, as Gemma has; such malicious JSON took 0.8 GB


def parse_json_object(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, at most 64 levels deep. Raise ValueError with a sentence that names ``path``."""
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"{path} has more than {MAX_VALUES:,} values.")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):  # also for a number of more digits than Python reads
        raise ValueError(f"{path} is not valid JSON.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object.")
    if _is_deeper(content, MAX_DEPTH):
        raise ValueError(f"{path} is nested more than {MAX_DEPTH} levels deep.")
    return content


def _is_deeper(content: Any, levels: int) -> bool:
    level = [content]
    for _ in range(levels):
        inner = (v for c in level for v in (c.values() if isinstance(c, dict) else c))
        level = [value for value in inner if isinstance(value, (dict, list))]
    return bool(level)
