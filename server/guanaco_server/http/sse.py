"""Server-sent events, on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": still here\n\n"  # a comment: keeps proxies from closing a quiet stream


def encode_event(event: str, data: BaseModel | dict[str, Any], id: int | None = None) -> bytes:
    """One event. JSON escapes line ends, so that the data is always one line."""
    body = data.model_dump_json() if isinstance(data, BaseModel) else json.dumps(data)
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {event}\ndata: {body}\n\n".encode()


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(
        events,
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )
