"""A repo's JSON files, which strangers wrote."""

from __future__ import annotations

from typing import Any

from guanaco.errors import CorruptConfig, MissingFile
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.formats.json_objects import parse_json_object

MAX_CONFIG_BYTES = 1_000_000


async def read_json(
    hub: Hub, snapshot: RepoSnapshot, path: str, max_bytes: int = MAX_CONFIG_BYTES
) -> dict[str, Any]:
    """Return the file's JSON object; MissingFile or CorruptConfig where there is none."""
    file = snapshot.file(path)
    if file is None:
        raise MissingFile(f"The repo has no {path}.", hint="Push it with `save_pretrained(...)`.")
    if file.size_bytes > max_bytes:
        raise CorruptConfig(f"{path} has {file.size_bytes:,} bytes; {max_bytes:,} are allowed.")
    data = await hub.read(snapshot, path, 0, file.size_bytes)
    return parse_object(path, data)


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``; CorruptConfig naming ``path``."""
    try:
        return parse_json_object(path, data)
    except ValueError as error:
        raise CorruptConfig(str(error)) from None
