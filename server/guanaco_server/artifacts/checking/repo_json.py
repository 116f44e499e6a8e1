"""A repo's JSON files, which strangers wrote."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from guanaco.errors import CorruptConfig, MissingFile
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot

MAX_CONFIG_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_VALUES = 4_000_000  # twice 262,000 words and 515,000 merges, as Gemma has; such malicious JSON took 0.8 GB


async def read_json(
    hub: Hub, snapshot: RepoSnapshot, path: str, max_bytes: int = MAX_CONFIG_BYTES
) -> dict[str, Any]:
    """The file's JSON object; MissingFile or CorruptConfig where there is none."""
    file = snapshot.file(path)
    if file is None:
        raise MissingFile(f"The repo has no {path}.", hint="Push it with `save_pretrained(...)`.")
    if file.size_bytes > max_bytes:
        raise CorruptConfig(f"{path} has {file.size_bytes:,} bytes; {max_bytes:,} are allowed.")
    data = await hub.read(snapshot, path, 0, file.size_bytes)
    return await asyncio.to_thread(parse_object, path, data)


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``, at most 64 levels deep; CorruptConfig naming ``path``."""
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise CorruptConfig(f"{path} has more than {MAX_VALUES:,} values.")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):  # also for a number of more digits than Python reads
        raise CorruptConfig(f"{path} is not valid JSON.") from None
    if not isinstance(content, dict):
        raise CorruptConfig(f"{path} is not a JSON object.")
    if _is_deeper(content, MAX_DEPTH):
        raise CorruptConfig(f"{path} is nested more than {MAX_DEPTH} levels deep.")
    return content


def _is_deeper(content: Any, levels: int) -> bool:
    level = [content]
    for _ in range(levels):
        inner = (v for c in level for v in (c.values() if isinstance(c, dict) else c))
        level = [value for value in inner if isinstance(value, (dict, list))]
    return bool(level)
