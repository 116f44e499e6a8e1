"""Server-sent events, read from bytes as they come (HTML standard, section 9.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerEvent:
    event: str
    data: str
    id: str | None


class SseDecoder:
    """Keeps what is not complete yet; ``last_id`` is what a resumed stream asks for."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self._id: str | None = None
        self._buffer = b""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that this chunk completes."""
        *lines, self._buffer = self._split(self._buffer + chunk)
        events = [self._take(line.decode("utf-8", errors="replace")) for line in lines]
        return [event for event in events if event is not None]

    def reset(self) -> None:
        """Forget a half-read event: its connection is gone."""
        self._buffer, self._event, self._data = b"", "", []
        self._id = self.last_id

    @staticmethod
    def _split(buffer: bytes) -> list[bytes]:
        if not buffer.endswith(b"\r"):  # a \n may follow in the next chunk
            return LINE_END.split(buffer)
        *lines, rest = LINE_END.split(buffer[:-1])
        return [*lines, rest + b"\r"]

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        self.last_id = self._id
        event = ServerEvent(self._event or "message", "\n".join(self._data), self.last_id)
        is_empty = not self._data
        self._event, self._data = "", []
        return None if is_empty else event
