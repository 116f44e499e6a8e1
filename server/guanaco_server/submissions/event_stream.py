"""A submission's events as server-sent events, with a heartbeat while nothing happens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from guanaco.submissions import SubmissionEvent
from guanaco_server.http.sse import HEARTBEAT, encode_event

HEARTBEAT_S = 10


async def encoded(events: AsyncIterator[SubmissionEvent | None]) -> AsyncIterator[bytes]:
    quiet_since = time.monotonic()
    async for event in events:
        if event is not None:
            quiet_since = time.monotonic()
            yield encode_event(event.kind, event, event.seq)
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            quiet_since = time.monotonic()
            yield HEARTBEAT
